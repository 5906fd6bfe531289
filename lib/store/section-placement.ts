/**
 * Which parts of a layer's file go to memory, and where. The parts of a layer share memories, so that a small delta
 * costs one; a memory takes parts up to 2 GiB together.
 */
import { READ_AHEAD_BYTES } from '../core/kernels/contract.ts';
import {
  alignUp,
  DELETED_STRIDE,
  keySegments,
  type LayerHeader,
  rowSegments,
  SEGMENT_BYTES_MAX,
} from '../core/layer-format.ts';
import { layOutScratch, SECTIONS_MAX, sectionParamsAddress, sectionsAddress } from './scratch.ts';

/** `keys`: slots or rows that answer for keys; `rows`: what an index points to. */
export type SectionRole = 'keys' | 'rows' | 'deleted';

export interface PlacedSection {
  readonly role: SectionRole;
  /** Its number among those of its role. */
  readonly index: number;
  /** In the file. */
  readonly offset: number;
  readonly bytes: number;
  /** Number of the memory, and where in it. */
  readonly memory: number;
  readonly address: number;
  readonly paramsAt: number;
}

export interface LayerPlacement {
  readonly sections: readonly PlacedSection[];
  /** Bytes of each memory. */
  readonly memories: readonly number[];
}

type Section = Pick<PlacedSection, 'role' | 'index' | 'offset' | 'bytes'>;

/** Rows can be read from disk when their place follows from an index or from the key. */
export function canStayOnDisk({ layout, rowCount }: LayerHeader): boolean {
  return layout !== 'inline' && rowCount > 0;
}

function sectionsInMemory(header: LayerHeader, rowsOnDisk: boolean): Section[] {
  const sections: Section[] = [];
  if (header.layout !== 'dense' || !rowsOnDisk) {
    for (const [index, { offset, bytes }] of keySegments(header).entries()) {
      sections.push({ role: 'keys', index, offset, bytes });
    }
  }
  if (header.deletedCount > 0) {
    const bytes = header.deletedSlots * DELETED_STRIDE;
    sections.push({ role: 'deleted', index: 0, offset: header.deletedOffset, bytes });
  }
  if (rowsOnDisk) return sections;
  for (const [index, { offset, bytes }] of rowSegments(header).entries()) {
    sections.push({ role: 'rows', index, offset, bytes });
  }
  return sections;
}

/** @param threads that look up at the same time: each has an area in every memory */
export function placeLayer(
  header: LayerHeader,
  threads: number,
  rowsOnDisk: boolean,
): LayerPlacement {
  const start = sectionsAddress(layOutScratch(header), threads);
  const memories: number[] = [];
  const sections: PlacedSection[] = [];
  let end = 0;
  let inMemory = 0;
  for (const section of sectionsInMemory(header, rowsOnDisk)) {
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
    const paramsAt = sectionParamsAddress(inMemory);
    inMemory++;
    sections.push({ ...section, memory, address, paramsAt });
  }
  // Without sections it is still where frames are, for lookups that go on from here.
  if (memories.length === 0) memories.push(start + READ_AHEAD_BYTES);
  return { sections, memories };
}
