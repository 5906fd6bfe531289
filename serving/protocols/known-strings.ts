/** Strings of slots, one input each, where the shapes of the inputs are known. */
import { isAscii } from 'node:buffer';
import { type FeatureRows, LINE_CHARS_MAX } from '../../lib/core/feature-rows.ts';
import type { Slot } from '../../lib/core/slots.ts';
import type { TensorHeader } from './input-tensor.ts';

const LENGTH_BYTES = 4;

/** Where the strings of an input go: the first place, and how far apart the rows are. */
interface StringInput {
  readonly position: number;
  readonly count: number;
  readonly isShared: boolean;
  readonly first: number;
  readonly step: number;
}

export class KnownStrings {
  readonly #inputs: readonly StringInput[];
  /** Slots that all rows share. */
  readonly #shared: Int32Array;
  readonly #ownCount: number;

  /** @param inputs of slots, which may have other inputs between them */
  constructor(
    inputs: readonly TensorHeader[],
    slots: readonly Slot[],
    { rowCount }: { readonly rowCount: number },
  ) {
    const positions = slots.map(({ name }) => inputs.findIndex((input) => input.name === name));
    const countRows = (position: number): number => inputs[position]?.shape[0] ?? 1;
    // A slot without an input is missing in every row.
    const isShared = positions.map((position) => rowCount > 1 && countRows(position) === 1);
    const sharedSlots = slots.flatMap((_, i) => (isShared[i] === true ? [i] : []));
    const ownSlots = slots.flatMap((_, i) => (isShared[i] === true ? [] : [i]));
    this.#shared = Int32Array.from(sharedSlots);
    this.#ownCount = rowCount * ownSlots.length;
    const placed = slots.map((_, i): StringInput => {
      const position = positions[i]!;
      const count = countRows(position);
      return isShared[i] === true
        ? { position, count, isShared: true, first: sharedSlots.indexOf(i), step: 1 }
        : { position, count, isShared: false, first: ownSlots.indexOf(i), step: ownSlots.length };
    });
    this.#inputs = placed
      .filter(({ position }) => position >= 0)
      .sort((a, b) => a.position - b.position);
  }

  /** @returns undefined for text that is not ASCII, and for lengths that do not fit */
  read(
    data: Uint8Array,
    ends: readonly number[],
  ): Pick<FeatureRows, 'features' | 'shared'> | undefined {
    const own = new Array<string>(this.#ownCount).fill('');
    const shared = new Array<string>(this.#shared.length).fill('');
    const bytes = Buffer.from(data.buffer, data.byteOffset, data.length);
    let run: Run | undefined;
    for (let i = 0; i < this.#inputs.length; i++) {
      const input = this.#inputs[i]!;
      const start = ends[input.position - 1] ?? 0;
      const end = ends[input.position]!;
      if (run === undefined || end > run.end) run = this.#decodeRun(bytes, ends, i);
      if (run === undefined) return undefined;
      const target = input.isShared ? shared : own;
      if (!readStrings(run, { start, end, input, target })) return undefined;
    }
    if (shared.length === 0) return { features: own };
    return { features: own, shared: { slots: this.#shared, features: shared } };
  }

  /**
   * Decodes the data of input `first` and of those that follow it without a gap: one long text is
   * decoded much faster than many short ones.
   */
  #decodeRun(bytes: Buffer, ends: readonly number[], first: number): Run | undefined {
    const inputs = this.#inputs;
    let last = first;
    while (inputs[last + 1]?.position === inputs[last]!.position + 1) last++;
    const start = ends[inputs[first]!.position - 1] ?? 0;
    const end = ends[inputs[last]!.position]!;
    // The length before each string is ASCII too while it is below 128.
    if (!isAscii(bytes.subarray(start, end))) return undefined;
    return { bytes, start, end, text: bytes.toString('latin1', start, end) };
  }
}

/** ASCII text from `start` to `end` of some bytes. */
interface Run {
  readonly bytes: Buffer;
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

/** @returns false when the lengths of the strings do not fit the input */
function readStrings(
  run: Run,
  place: { start: number; end: number; input: StringInput; target: string[] },
): boolean {
  const { bytes, start: runStart, text } = run;
  const { end, input, target } = place;
  let at = place.start;
  for (let i = 0, to = input.first; i < input.count; i++, to += input.step) {
    const start = at + LENGTH_BYTES;
    if (start > end) return false;
    at = start + bytes.readUInt32LE(at);
    if (at > end || at - start > LINE_CHARS_MAX) return false;
    target[to] = text.slice(start - runStart, at - runStart);
  }
  return at === end;
}
