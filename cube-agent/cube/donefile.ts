/**
 * Donefiles, in which trainers list for Cube's cube-transfer what to publish: one line of JSON for
 * each model, appended.
 * `{"id":"1628131462","key":"1628131462","input":"/a/folder/of/sequence/files"}`. The key of a base
 * is its own id, the key of a patch is the id of its base. Pure: turns texts into steps.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';

const LINES_MAX = 1_000_000;
const LINE_CHARS_MAX = 16 << 10;
const ID = /^(0|[1-9]\d{0,19})$/;

export interface DonefileEntry {
  /** From 1. */
  readonly line: number;
  readonly id: string;
  /** The id of the base that it belongs to. */
  readonly key: string;
  /** Absolute path of its sequence files. */
  readonly input: string;
  /** Number of this model among those of one id and key, from 1: two may finish in one second. */
  readonly ordinal: number;
}

/** A line, or an order of lines, that is invalid. */
export interface DonefileProblem {
  readonly line: number;
  readonly reason: string;
}

export interface Donefile {
  readonly entries: readonly DonefileEntry[];
  readonly problems: readonly DonefileProblem[];
}

/**
 * An invalid line is a problem with its number; the other lines are used. Never throws for a line.
 */
export function parseDonefile(text: string, source: string): Donefile {
  const entries: DonefileEntry[] = [];
  const problems: DonefileProblem[] = [];
  const inputs = new Map<string, string[]>();
  const lines = text.split('\n');
  if (lines.length > LINES_MAX) {
    throw new CubeError('TOO_LARGE', `${source}: ${lines.length} lines, at most ${LINES_MAX}`);
  }
  for (const [i, raw] of lines.entries()) {
    if (raw.trim() === '') continue;
    const line = i + 1;
    try {
      const entry = readEntry(raw, `${source}: line ${line}`);
      const known = inputs.get(`${entry.key}_${entry.id}`) ?? [];
      // A repeated line is ignored.
      if (known.includes(entry.input)) continue;
      inputs.set(`${entry.key}_${entry.id}`, [...known, entry.input]);
      entries.push({ line, ...entry, ordinal: known.length + 1 });
    } catch (error) {
      problems.push({ line, reason: CubeError.from(error).message });
    }
  }
  return { entries, problems };
}

function readEntry(text: string, place: string): Omit<DonefileEntry, 'line' | 'ordinal'> {
  if (text.length > LINE_CHARS_MAX) {
    throw new CubeError('TOO_LARGE', `${place}: more than ${LINE_CHARS_MAX} characters`);
  }
  const json = JsonReader.parse(text, place);
  const number = (name: string): string => {
    const field = json.field(name);
    const id = typeof field.value === 'number' ? String(field.value) : field.string();
    return ID.test(id) ? id : field.fail('a number of up to 20 digits');
  };
  const input = json.field('input').string();
  // It becomes an argument, so it must not be a flag or depend on the working directory.
  if (!input.startsWith('/') || input.includes('\0')) json.field('input').fail('an absolute path');
  return { id: number('id'), key: number('key'), input };
}

/** The version's name depends only on the entry, so that it is built once. */
function toBaseVersion({ id, ordinal }: DonefileEntry): string {
  return ordinal === 1 ? id : `${id}.${ordinal}`;
}

function toPatchVersion(base: string, patch: DonefileEntry): string {
  return `${base}_${toBaseVersion(patch)}`;
}

/** A version to publish. */
export interface DonefileStep {
  readonly version: string;
  readonly kind: 'base' | 'delta';
  readonly input: string;
  /** Parent version of a delta. */
  readonly parent: string | undefined;
  readonly line: number;
}

/** The newest base and its patches, in order. */
export interface DonefileChain {
  readonly steps: readonly DonefileStep[];
  readonly problems: readonly DonefileProblem[];
}

/** Uses the last base; patches of other bases are ignored. */
export function buildChain(bases: Donefile, patches: Donefile | undefined): DonefileChain {
  const base = bases.entries.at(-1);
  if (base === undefined) return { steps: [], problems: [] };
  const first = toBaseVersion(base);
  const steps: DonefileStep[] = [
    { version: first, kind: 'base', input: base.input, parent: undefined, line: base.line },
  ];
  const problems: DonefileProblem[] = [];
  let newest = BigInt(base.id);
  for (const patch of patches?.entries ?? []) {
    if (patch.key !== base.id) continue;
    const id = BigInt(patch.id);
    if (id < newest) {
      const problem = `id ${patch.id} is lower than the earlier id ${newest}`;
      const reason = `line ${patch.line}: ${problem}; it is ignored, as in Cube`;
      problems.push({ line: patch.line, reason });
      continue;
    }
    newest = id;
    const parent = steps.at(-1)?.version;
    const version = toPatchVersion(first, patch);
    steps.push({ version, kind: 'delta', input: patch.input, parent, line: patch.line });
  }
  return { steps, problems };
}

/**
 * The number of steps up to the last one that was ever published. Earlier ones may have been
 * garbage-collected since; they are not built again.
 */
export function countPublishedSteps(
  chain: DonefileChain,
  wasPublished: (version: string) => boolean,
): number {
  return chain.steps.findLastIndex(({ version }) => wasPublished(version)) + 1;
}
