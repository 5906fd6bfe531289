/**
 * Donefiles, with which trainers tell Cube's cube-transfer what to publish: a line of JSON for each model, appended.
 * `{"id":"1628131462","key":"1628131462","input":"/a/folder/of/sequence/files"}`; a base has its own id as its key, a patch
 * the id of its base. Pure: from texts to what is to be built next.
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
  /** Where its sequence files are: an absolute path. */
  readonly input: string;
  /** The how manyth model of this id and key it is, from 1: two trainers may finish in one second. */
  readonly ordinal: number;
}

/** A line, or an order of lines, that means nothing. */
export interface DonefileProblem {
  readonly line: number;
  readonly why: string;
}

export interface Donefile {
  readonly entries: readonly DonefileEntry[];
  readonly problems: readonly DonefileProblem[];
}

/** What is broken is a problem with its number, and the other lines count. Never throws for a line. */
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
      // The same line again says nothing new.
      if (known.includes(entry.input)) continue;
      inputs.set(`${entry.key}_${entry.id}`, [...known, entry.input]);
      entries.push({ line, ...entry, ordinal: known.length + 1 });
    } catch (error) {
      problems.push({ line, why: CubeError.from(error).message });
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
  // It becomes an argument: neither a flag, nor a place that depends on where we run.
  if (!input.startsWith('/') || input.includes('\0')) json.field('input').fail('an absolute path');
  return { id: number('id'), key: number('key'), input };
}

/** The name of the version that an entry becomes: from the entry alone, so that it is built once. */
function baseVersion({ id, ordinal }: DonefileEntry): string {
  return ordinal === 1 ? id : `${id}.${ordinal}`;
}

function patchVersion(base: string, patch: DonefileEntry): string {
  return `${base}_${baseVersion(patch)}`;
}

/** A version that the donefiles ask for. */
export interface DonefileStep {
  readonly version: string;
  readonly kind: 'base' | 'delta';
  readonly input: string;
  /** Of a delta: the version it goes on. */
  readonly parent: string | undefined;
  readonly line: number;
}

/** Newest base and its patches, in order. */
export interface DonefileChain {
  readonly steps: readonly DonefileStep[];
  readonly problems: readonly DonefileProblem[];
}

/** The base that counts is the last one; a patch of another base is none any more. */
export function chainOf(bases: Donefile, patches: Donefile | undefined): DonefileChain {
  const base = bases.entries.at(-1);
  if (base === undefined) return { steps: [], problems: [] };
  const first = baseVersion(base);
  const steps: DonefileStep[] = [
    { version: first, kind: 'base', input: base.input, parent: undefined, line: base.line },
  ];
  const problems: DonefileProblem[] = [];
  let newest = BigInt(base.id);
  for (const patch of patches?.entries ?? []) {
    if (patch.key !== base.id) continue;
    const id = BigInt(patch.id);
    if (id < newest) {
      const why = `line ${patch.line}: id ${patch.id} comes after ${newest}: it is never taken, as in Cube`;
      problems.push({ line: patch.line, why });
      continue;
    }
    newest = id;
    const parent = steps.at(-1)?.version;
    const version = patchVersion(first, patch);
    steps.push({ version, kind: 'delta', input: patch.input, parent, line: patch.line });
  }
  return { steps, problems };
}

/**
 * How far a chain has come: the last step that was ever published. Earlier ones may have been collected since; they are not
 * built again.
 * @returns the number of steps that are done
 */
export function stepsDone(
  chain: DonefileChain,
  wasPublished: (version: string) => boolean,
): number {
  return chain.steps.findLastIndex(({ version }) => wasPublished(version)) + 1;
}
