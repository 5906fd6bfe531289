/**
 * Tensors of the general model service to rows: one tensor for each slot (ids that the caller has hashed, or feature strings to be
 * hashed here), and one for the dense features as the graph takes them. A lod makes bags of a slot's values.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/features.ts';
import type { GeneralTensor } from '../../proto/general-tensor.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { floatsOf, type IdValues, idsOf, refuse, sizeOf } from './paddle-values.ts';

/** What the original's examples call the dense input, whatever the graph calls it. */
const DENSE_INPUT = 'dense_input';
/** Names to list in an error. */
const NAMES_SHOWN = 8;

/** What a tensor's name stands for: so many slots from `first` on, or (count 0) the dense features. */
interface Feed {
  readonly first: number;
  readonly count: number;
}

/** A slot's values, row by row. */
interface SlotColumn {
  readonly tensor: GeneralTensor;
  readonly rowCount: number;
  /** Slots side by side in each row of the tensor. */
  readonly feed: Feed;
  /** Where each row's values end; undefined: one value in each. */
  readonly ends: Int32Array | undefined;
}

/** The names that a model's tensors may have. */
export class PaddleFeeds {
  readonly #feeds = new Map<string, Feed>();
  readonly #slotNames: readonly string[];
  readonly #denseNum: number;

  constructor({ features, ids, plan }: LoadedBundle) {
    this.#slotNames = features.slots.map(({ name }) => name);
    this.#denseNum = plan.denseNum;
    for (const { input, table, columns } of plan.embeddings) {
      const [column, ...others] = columns;
      if (column === undefined || others.length > 0) continue;
      const slot = plan.tables[table]!.columns[column]!;
      if (slot < plan.slotNum) this.#feeds.set(input, { first: slot, count: 1 });
    }
    for (const [slot, name] of this.#slotNames.entries()) {
      this.#feeds.set(name, { first: slot, count: 1 });
    }
    let first = 0;
    for (const { input, columns } of ids ?? []) {
      this.#feeds.set(input, { first, count: columns });
      first += columns;
    }
    const [dense, ...others] = plan.dense;
    if (dense === undefined) return;
    // Of several inputs the one tensor is all of them, side by side.
    for (const name of others.length === 0 ? [DENSE_INPUT, dense.input] : [DENSE_INPUT]) {
      if (!this.#feeds.has(name)) this.#feeds.set(name, { first: 0, count: 0 });
    }
  }

  /**
   * @param aliases what callers call tensors, to the names of the model
   * @throws CubeError INVALID_ARGUMENT naming the tensor, TOO_LARGE over `rowsMax`
   */
  rows(
    tensors: readonly GeneralTensor[],
    rowsMax: number,
    aliases: ReadonlyMap<string, string>,
  ): FeatureRows | KeyedRows {
    const columns: SlotColumn[] = new Array(this.#slotNames.length);
    let dense: GeneralTensor | undefined;
    for (const tensor of tensors) {
      const feed = this.#find(tensor, aliases);
      if (feed.count === 0) {
        if (dense !== undefined) refuse(tensor, 'the dense features twice');
        dense = tensor;
      } else {
        const column = slotColumn(tensor, feed);
        for (let i = 0; i < feed.count; i++) {
          if (columns[feed.first + i] !== undefined) refuse(tensor, 'a slot that came already');
          columns[feed.first + i] = column;
        }
      }
    }
    const rowCount = this.#checkWhole(columns, dense);
    if (rowCount > rowsMax) {
      throw new CubeError(
        'TOO_LARGE',
        `${rowCount} rows in one request, the limit is ${rowsMax}: send them in several requests`,
      );
    }
    return { rowCount, dense: this.#dense(dense, rowCount), ...joinColumns(columns, rowCount) };
  }

  #find(tensor: GeneralTensor, aliases: ReadonlyMap<string, string>): Feed {
    for (const name of [tensor.name, tensor.aliasName]) {
      const feed = this.#feeds.get(name) ?? this.#feeds.get(aliases.get(name) ?? '');
      if (feed !== undefined && name !== '') return feed;
    }
    const names = [...this.#feeds.keys()];
    const shown = names.slice(0, NAMES_SHOWN).join(', ');
    return refuse(
      tensor,
      `no input of the model, which takes ${shown}${names.length > NAMES_SHOWN ? ', …' : ''}`,
    );
  }

  /** @returns the number of rows, the same in all tensors */
  #checkWhole(columns: readonly SlotColumn[], dense: GeneralTensor | undefined): number {
    const missing = this.#slotNames.findIndex((_, slot) => columns[slot] === undefined);
    if (missing >= 0) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `a tensor for ${this.#slotNames[missing]} is missing`,
      );
    }
    if (dense === undefined && this.#denseNum > 0) {
      throw new CubeError('INVALID_ARGUMENT', `a tensor ${DENSE_INPUT} is missing`);
    }
    const rowCount = columns[0]?.rowCount ?? rowsOf(dense!, this.#denseNum);
    for (const { tensor, rowCount: own } of columns) {
      if (own !== rowCount) refuse(tensor, `of ${own} rows beside one of ${rowCount}`);
    }
    if (rowCount === 0) throw new CubeError('INVALID_ARGUMENT', 'the tensors have no rows');
    return rowCount;
  }

  #dense(tensor: GeneralTensor | undefined, rowCount: number): Float32Array {
    if (tensor === undefined) return new Float32Array(0);
    const values = floatsOf(tensor);
    checkShape(tensor, values.length);
    if (rowsOf(tensor, this.#denseNum) !== rowCount) {
      refuse(tensor, `of ${values.length} values, not of ${rowCount} rows of ${this.#denseNum}`);
    }
    const bad = values.findIndex((value) => !Number.isFinite(value));
    if (bad >= 0) refuse(tensor, `with ${values[bad]} as value ${bad}: send finite numbers`);
    return values;
  }
}

/** @throws CubeError INVALID_ARGUMENT when shape or lod do not say what the values are */
function slotColumn(tensor: GeneralTensor, feed: Feed): SlotColumn {
  const size = sizeOf(tensor);
  checkShape(tensor, size);
  const { lod, shape } = tensor;
  if (lod.length > 0) {
    if (feed.count > 1) refuse(tensor, `with a lod, though it holds ${feed.count} slots`);
    checkLod(tensor, size);
    const ends = lod.subarray(1);
    return { tensor, feed, rowCount: ends.length, ends: isSingles(ends) ? undefined : ends };
  }
  const rowCount = shape[0] ?? size / feed.count;
  const width = size / rowCount;
  if (width === feed.count) return { tensor, feed, rowCount, ends: undefined };
  if (feed.count > 1 || size === 0) {
    refuse(tensor, `of ${size} values, not of rows of ${feed.count}`);
  }
  const ends = Int32Array.from({ length: rowCount }, (_, row) => (row + 1) * width);
  return { tensor, feed, rowCount, ends };
}

function checkShape(tensor: GeneralTensor, size: number): void {
  const { shape } = tensor;
  if (shape.length === 0) return;
  const product = shape.reduce((sum, dim) => sum * dim, 1);
  if (product === size && shape.every((dim) => dim >= 0)) return;
  refuse(tensor, `of shape [${shape.join(', ')}] with ${size} values`);
}

function checkLod(tensor: GeneralTensor, size: number): void {
  const { lod } = tensor;
  let isFit = lod[0] === 0 && lod.at(-1) === size;
  for (let i = 1; i < lod.length; i++) isFit &&= lod[i]! >= lod[i - 1]!;
  if (isFit) return;
  refuse(tensor, `with a lod that does not rise from 0 to the number of its values (${size})`);
}

function isSingles(ends: Int32Array): boolean {
  return ends.every((end, row) => end === row + 1);
}

function rowsOf(tensor: GeneralTensor, width: number): number {
  return sizeOf(tensor) / width;
}

/** All slots of a row side by side, as strings when they came so. */
function joinColumns(
  columns: readonly SlotColumn[],
  rowCount: number,
): Pick<FeatureRows, 'features' | 'ends'> | Pick<KeyedRows, 'keys' | 'ends'> {
  const ends = columns.some((column) => column.ends !== undefined)
    ? new Uint32Array(rowCount * columns.length)
    : undefined;
  const bags = ends === undefined ? {} : { ends };
  if (columns.some(({ tensor }) => tensor.strings.length > 0)) {
    const features: string[] = [];
    eachValue(columns, rowCount, ends, ({ tensor }, at) => {
      features.push(tensor.strings[at] ?? refuse(tensor, 'of ids beside others of strings'));
    });
    return { features, ...bags };
  }
  const ids = new Map<GeneralTensor, IdValues>();
  for (const { tensor } of columns) if (!ids.has(tensor)) ids.set(tensor, idsOf(tensor));
  const total = columns.reduce((sum, { tensor, feed }) => sum + sizeOf(tensor) / feed.count, 0);
  const keys = new Uint32Array(2 * total);
  let to = 0;
  eachValue(columns, rowCount, ends, ({ tensor }, at) => {
    ids.get(tensor)!.copy(at, keys, to);
    to += 2;
  });
  return { keys, ...bags };
}

/** Calls `take` for every value, row by row, slot by slot; fills `ends`. */
function eachValue(
  columns: readonly SlotColumn[],
  rowCount: number,
  ends: Uint32Array | undefined,
  take: (column: SlotColumn, at: number) => void,
): void {
  let count = 0;
  for (let row = 0, bag = 0; row < rowCount; row++) {
    for (let slot = 0; slot < columns.length; slot++, bag++) {
      const column = columns[slot]!;
      const { feed } = column;
      const own = column.ends;
      const start = own === undefined ? row * feed.count + slot - feed.first : (own[row - 1] ?? 0);
      const end = own === undefined ? start + 1 : own[row]!;
      for (let at = start; at < end; at++) take(column, at);
      count += end - start;
      if (ends !== undefined) ends[bag] = count;
    }
  }
}
