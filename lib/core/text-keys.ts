/**
 * Reads the texts of string tensors straight to keys, without a string for each text: a kernel
 * reads the bytes of the request, in which each text follows its length as a u32. The keys are
 * those of hash.ts. Data that is not ASCII, or whose lengths do not fit, is left to parsers that
 * say what is wrong with it.
 */
import { LINE_CHARS_MAX } from './feature-rows.ts';
import { encodeSlotPrefixes, RowHasher } from './hash.ts';
import type { Kernels } from './kernels/contract.ts';
import { createKernels, createMemory, type KernelKind, shareByKind } from './kernels/kernels.ts';
import {
  HASH_MODULO,
  HASH_SEED,
  PARAMS_BYTES,
  TEXT_BYTES_MAX,
  TEXT_SLOT_BYTES,
  TEXT_SLOT_EMPTY_KEY,
  TEXT_SLOT_LENGTH,
} from './kernels/params.ts';
import { SlotModulos } from './slot-modulos.ts';
import { getModulo, type HashSpec, type SlotKeyRule } from './slots.ts';
import { allocateWords } from './word-slab.ts';

/** Larger requests are parsed as text. */
const DATA_BYTES_MAX: number = 1 << 20;
const KEYS_MAX: number = 1 << 17;
const SLOTS_MAX = 2048;
/** The kernel reads so many bytes after the data, and writes as many before it. */
const SLACK_BYTES = 16;
const PARAMS_AT = 0;
const SLOTS_AT: number = PARAMS_BYTES;
const KEYS_AT: number = SLOTS_AT + TEXT_SLOT_BYTES * SLOTS_MAX;
const DATA_AT: number = KEYS_AT + 8 * KEYS_MAX + SLACK_BYTES;

/** Where the texts of one input belong. */
export interface TextInput {
  /** Among the inputs of the request; -1: the slot has no input and is missing in each row. */
  readonly position: number;
  /** Position of the slot; undefined: the texts are those of all slots, row by row. */
  readonly slot: number | undefined;
  /** There is one text, which all rows share. */
  readonly isShared: boolean;
}

/** Requests with the same inputs for the same number of rows. */
export interface TextShape {
  readonly inputs: readonly TextInput[];
  readonly rowCount: number;
}

export class TextKeys {
  readonly #hash: HashSpec;
  readonly #slotBlocks: Uint8Array;
  readonly #slotNum: number;
  readonly #rowCount: number;
  readonly #inputs: readonly TextInput[];
  /** Set when slots have different modulos. */
  readonly #modulos: SlotModulos | undefined;
  readonly #scratch: TextScratch;

  /** @param kind for tests; default: the fastest that the runtime supports */
  private constructor(
    hash: HashSpec,
    slots: readonly SlotKeyRule[],
    { inputs, rowCount }: TextShape,
    kind: KernelKind | undefined,
  ) {
    const modulos = slots.map((slot) => getModulo(hash, slot));
    const [modulo = 0n] = modulos;
    const isOneModulo = modulos.every((other) => other === modulo);
    this.#hash = { ...hash, modulo: isOneModulo ? modulo : 0n };
    this.#modulos = isOneModulo ? undefined : new SlotModulos(modulos);
    this.#slotBlocks = encodeSlots(hash, slots, kind);
    this.#slotNum = slots.length;
    this.#rowCount = rowCount;
    // The kernel overwrites what lies before the texts that it reads.
    this.#inputs = [...inputs].sort((a, b) => a.position - b.position);
    this.#scratch = getTextScratch(kind);
  }

  /** @returns undefined when the texts are ids, or too many */
  static create(
    hash: HashSpec,
    slots: readonly SlotKeyRule[],
    shape: TextShape,
    kind?: KernelKind,
  ): TextKeys | undefined {
    const isSmall = slots.length <= SLOTS_MAX && slots.length * shape.rowCount <= KEYS_MAX;
    if (hash.scheme === 'raw' || !isSmall) return undefined;
    return new TextKeys(hash, slots, shape, kind);
  }

  /**
   * @param ends for each input of the request, where it ends in the data
   * @returns the keys of all rows, or undefined for data that must be parsed as text
   */
  read(data: Uint8Array, ends: readonly number[]): Uint32Array | undefined {
    if (data.length > DATA_BYTES_MAX) return undefined;
    const scratch = this.#scratch;
    const count = this.#rowCount * this.#slotNum;
    scratch.load(data, this.#hash, this.#slotBlocks);
    for (const input of this.#inputs) {
      if (!this.#readInput(input, ends)) return undefined;
    }
    const keys = allocateWords(2 * count);
    scratch.copyKeys(keys);
    this.#modulos?.reduce(keys, { at: 0, first: 0, count }, undefined);
    return keys;
  }

  #readInput({ position, slot, isShared }: TextInput, ends: readonly number[]): boolean {
    const [slotNum, rowCount] = [this.#slotNum, this.#rowCount];
    const start = ends[position - 1] ?? 0;
    const scratch = this.#scratch;
    if (slot === undefined) {
      const all = { count: rowCount * slotNum, slot: 0, slotNum, step: 1 };
      return scratch.hash(start, ends[position]!, all);
    }
    const count = isShared ? 1 : rowCount;
    if (position < 0) scratch.putEmpty(slot);
    else if (!scratch.hash(start, ends[position]!, { count, slot, slotNum: 1, step: slotNum })) {
      return false;
    }
    if (isShared || position < 0) scratch.repeat(slot, slotNum, rowCount);
    return true;
  }
}

/** Texts of slots in turn; their keys are `step` places apart, from the place of the first slot. */
interface TextRun {
  readonly count: number;
  readonly slot: number;
  readonly slotNum: number;
  readonly step: number;
}

/** The scratch memory in which the kernel reads texts. */
class TextScratch {
  readonly #kernels: Kernels;
  readonly #params: DataView;
  readonly #slots: Uint8Array;
  readonly #slotWords: Uint32Array;
  readonly #keys: Uint32Array;
  readonly #data: Uint8Array;
  #loadedSlots: Uint8Array | undefined;

  constructor(kind: KernelKind | undefined) {
    const memory = createMemory(DATA_AT + DATA_BYTES_MAX + SLACK_BYTES);
    const { buffer } = memory;
    this.#kernels = createKernels(memory, kind);
    this.#params = new DataView(buffer, PARAMS_AT, PARAMS_BYTES);
    this.#slots = new Uint8Array(buffer, SLOTS_AT, TEXT_SLOT_BYTES * SLOTS_MAX);
    this.#slotWords = new Uint32Array(buffer, SLOTS_AT, (TEXT_SLOT_BYTES / 4) * SLOTS_MAX);
    this.#keys = new Uint32Array(buffer, KEYS_AT, 2 * KEYS_MAX);
    this.#data = new Uint8Array(buffer, DATA_AT, DATA_BYTES_MAX);
    this.#params.setUint32(TEXT_BYTES_MAX, LINE_CHARS_MAX, true);
  }

  load(data: Uint8Array, { seed, modulo }: HashSpec, slots: Uint8Array): void {
    this.#data.set(data);
    if (this.#loadedSlots === slots) return;
    this.#params.setBigUint64(HASH_SEED, seed, true);
    this.#params.setBigUint64(HASH_MODULO, modulo, true);
    this.#slots.set(slots);
    this.#loadedSlots = slots;
  }

  /** Hashes the texts in a range of the data. @returns false when they do not fit it */
  hash(start: number, end: number, { count, slot, slotNum, step }: TextRun): boolean {
    const slots = SLOTS_AT + slot * TEXT_SLOT_BYTES;
    const keys = KEYS_AT + 8 * slot;
    const [from, to] = [DATA_AT + start, DATA_AT + end];
    const kernels = this.#kernels;
    return kernels.hashInput(PARAMS_AT, from, to, count, slots, slotNum, keys, 8 * step) !== 0;
  }

  /** Writes the key of an empty text to the first row. */
  putEmpty(slot: number): void {
    const from = (slot * TEXT_SLOT_BYTES + TEXT_SLOT_EMPTY_KEY) / 4;
    this.#keys[2 * slot] = this.#slotWords[from]!;
    this.#keys[2 * slot + 1] = this.#slotWords[from + 1]!;
  }

  /** Copies the key of a slot from the first row to all others. */
  repeat(slot: number, slotNum: number, rowCount: number): void {
    const keys = this.#keys;
    const low = keys[2 * slot]!;
    const high = keys[2 * slot + 1]!;
    for (let row = 1, word = 2 * (slotNum + slot); row < rowCount; row++, word += 2 * slotNum) {
      keys[word] = low;
      keys[word + 1] = high;
    }
  }

  copyKeys(target: Uint32Array): void {
    target.set(this.#keys.subarray(0, target.length));
  }
}

const getTextScratch: (kind: KernelKind | undefined) => TextScratch = shareByKind(
  (kind) => new TextScratch(kind),
);

/** For each slot, its prefix and the key of an empty text, as the kernel reads them. */
function encodeSlots(
  hash: HashSpec,
  slots: readonly SlotKeyRule[],
  kind: KernelKind | undefined,
): Uint8Array {
  const keys = new Uint32Array(2 * slots.length);
  const empty = slots.map(() => '');
  new RowHasher(hash, slots, kind).hashRows(empty, 1, keys);
  const bytes = new Uint8Array(TEXT_SLOT_BYTES * slots.length);
  const view = new DataView(bytes.buffer);
  for (const [slot, prefix] of encodeSlotPrefixes(hash, slots).entries()) {
    const at = TEXT_SLOT_BYTES * slot;
    bytes.set(prefix, at);
    bytes[at + TEXT_SLOT_LENGTH] = prefix.length;
    view.setUint32(at + TEXT_SLOT_EMPTY_KEY, keys[2 * slot]!, true);
    view.setUint32(at + TEXT_SLOT_EMPTY_KEY + 4, keys[2 * slot + 1]!, true);
  }
  return bytes;
}
