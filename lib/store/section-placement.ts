/**
 * Decides which sections of a layer file are loaded into memory, and at which addresses. Sections
 * share memories, so that a small delta needs only one; a memory takes sections of up to 2 GiB
 * together.
 */
import { READ_AHEAD_BYTES } from '../core/kernels/contract.ts';
import {
  alignUp,
  DELETED_STRIDE,
  getKeySegments,
  getRowSegments,
  type LayerHeader,
  SEGMENT_BYTES_MAX,
} from '../core/layer-format.ts';
import {
  computeParamsAddress,
  computeScratchLayout,
  computeSectionsAddress,
  SECTIONS_MAX,
} from './scratch-layout.ts';

/** `keys`: slots or rows searched by key; `rows`: rows that an index refers to. */
export type SectionRole = 'keys' | 'rows' | 'deleted';

export interface PlacedSection {
  readonly role: SectionRole;
  /** Index among the sections of its role. */
  readonly index: number;
  /** Offset in the file. */
  readonly offset: number;
  readonly bytes: number;
  /** Index of the memory, followed by the address in it. */
  readonly memory: number;
  readonly address: number;
  readonly paramsAt: number;
}

export interface LayerPlacement {
  readonly sections: readonly PlacedSection[];
  /** Size of each memory. */
  readonly memories: readonly number[];
}

type Section = Pick<PlacedSection, 'role' | 'index' | 'offset' | 'bytes'>;

/** Rows can stay on disk if their location follows from an index or from the key. */
export function canStayOnDisk({ layout, rowCount }: LayerHeader): boolean {
  return layout !== 'inline' && rowCount > 0;
}

function listResidentSections(header: LayerHeader, rowsOnDisk: boolean): Section[] {
  const sections: Section[] = [];
  if (header.layout !== 'dense' || !rowsOnDisk) {
    for (const [index, { offset, bytes }] of getKeySegments(header).entries()) {
      sections.push({ role: 'keys', index, offset, bytes });
    }
  }
  if (header.deletedCount > 0) {
    const bytes = header.deletedSlots * DELETED_STRIDE;
    sections.push({ role: 'deleted', index: 0, offset: header.deletedOffset, bytes });
  }
  if (rowsOnDisk) return sections;
  for (const [index, { offset, bytes }] of getRowSegments(header).entries()) {
    sections.push({ role: 'rows', index, offset, bytes });
  }
  return sections;
}

/** @param threads that may look up concurrently: each has an area in every memory */
export function placeLayer(
  header: LayerHeader,
  threads: number,
  rowsOnDisk: boolean,
): LayerPlacement {
  const start = computeSectionsAddress(computeScratchLayout(header), threads);
  const memories: number[] = [];
  const sections: PlacedSection[] = [];
  let end = 0;
  let inMemory = 0;
  for (const section of listResidentSections(header, rowsOnDisk)) {
    const next = alignUp(end, 4096);
    const fits = next + section.bytes <= start + SEGMENT_BYTES_MAX && inMemory < SECTIONS_MAX;
    const fresh = memories.length === 0 || !fits;
    if (fresh) {
      memories.push(0);
      inMemory = 0;
    }
    const address = fresh ? start : next;
    end = address + section.bytes;
    const memory = memories.length - 1;
    memories[memory] = end + READ_AHEAD_BYTES;
    const paramsAt = computeParamsAddress(inMemory);
    inMemory++;
    sections.push({ ...section, memory, address, paramsAt });
  }
  // A layer without sections still needs a memory for frames.
  if (memories.length === 0) memories.push(start + READ_AHEAD_BYTES);
  return { sections, memories };
}
