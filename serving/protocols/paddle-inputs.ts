/**
 * Converts tensors of the general model service to rows: one tensor per slot (hashed ids, or
 * feature strings to be hashed here), and one tensor of dense features, scaled as the graph takes
 * them. A lod groups the values of a slot into bags.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import type { GeneralTensor } from '../../proto/general-tensor.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { countValues, type IdValues, readFloats, readIds, rejectTensor } from './paddle-values.ts';

/** Name of the dense input in the examples of Paddle Serving. */
const DENSE_INPUT = 'dense_input';
/** Maximum names listed in an error. */
const NAMES_SHOWN = 8;

/** The slots that a tensor name stands for; count 0 stands for the dense features. */
interface SlotRange {
  readonly first: number;
  readonly count: number;
}

/** A slot's values, row by row. */
interface SlotColumn {
  readonly tensor: GeneralTensor;
  /** Values of the tensor. */
  readonly size: number;
  readonly rowCount: number;
  /** The slots in each row of the tensor. */
  readonly range: SlotRange;
  /** The end of each row's values; undefined when every row has one value. */
  readonly ends: Int32Array | undefined;
}

/** The tensor names that a model accepts, and the parser of its requests. */
export class PaddleInputs {
  readonly #ranges = new Map<string, SlotRange>();
  readonly #slotNames: readonly string[];
  readonly #denseNum: number;

  constructor({ features, ids, plan }: LoadedBundle) {
    this.#slotNames = features.slots.map(({ name }) => name);
    this.#denseNum = plan.denseNum;
    for (const { input, table, columns } of plan.embeddings) {
      const [column, ...others] = columns;
      if (column === undefined || others.length > 0) continue;
      const slot = plan.tables[table]!.columns[column]!;
      if (slot < plan.slotNum) this.#ranges.set(input, { first: slot, count: 1 });
    }
    for (const [slot, name] of this.#slotNames.entries()) {
      this.#ranges.set(name, { first: slot, count: 1 });
    }
    let first = 0;
    for (const { input, columns } of ids ?? []) {
      this.#ranges.set(input, { first, count: columns });
      first += columns;
    }
    const [dense, ...others] = plan.dense;
    if (dense === undefined) return;
    // With several dense inputs, one tensor holds all of them side by side.
    for (const name of others.length === 0 ? [DENSE_INPUT, dense.input] : [DENSE_INPUT]) {
      if (!this.#ranges.has(name)) this.#ranges.set(name, { first: 0, count: 0 });
    }
  }

  /**
   * @param aliases tensor names used by clients, to the names in the model
   * @throws CubeError INVALID_ARGUMENT naming the tensor, TOO_LARGE over `rowsMax`
   */
  parseRows(
    tensors: readonly GeneralTensor[],
    rowsMax: number,
    aliases: ReadonlyMap<string, string>,
  ): FeatureRows | KeyedRows {
    const columns: SlotColumn[] = new Array(this.#slotNames.length);
    let dense: GeneralTensor | undefined;
    for (const tensor of tensors) {
      const range = this.#find(tensor, aliases);
      if (range.count === 0) {
        if (dense !== undefined) rejectTensor(tensor, 'the dense features are given twice');
        dense = tensor;
      } else {
        const column = toSlotColumn(tensor, range);
        for (let i = 0; i < range.count; i++) {
          if (columns[range.first + i] !== undefined)
            rejectTensor(tensor, 'its slot is given twice');
          columns[range.first + i] = column;
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

  #find(tensor: GeneralTensor, aliases: ReadonlyMap<string, string>): SlotRange {
    for (const name of [tensor.name, tensor.aliasName]) {
      const range = this.#ranges.get(name) ?? this.#ranges.get(aliases.get(name) ?? '');
      if (range !== undefined && name !== '') return range;
    }
    const names = [...this.#ranges.keys()];
    const shown = names.slice(0, NAMES_SHOWN).join(', ');
    return rejectTensor(
      tensor,
      `not an input of the model, which takes ${shown}${names.length > NAMES_SHOWN ? ', …' : ''}`,
    );
  }

  /** @returns the number of rows, the same in all tensors */
  #checkWhole(columns: readonly SlotColumn[], dense: GeneralTensor | undefined): number {
    const missing = this.#slotNames.findIndex((_, slot) => columns[slot] === undefined);
    if (missing >= 0) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `the tensor for slot ${this.#slotNames[missing]} is missing`,
      );
    }
    if (dense === undefined && this.#denseNum > 0) {
      throw new CubeError('INVALID_ARGUMENT', `the tensor ${DENSE_INPUT} is missing`);
    }
    const countDense = (): number =>
      dense === undefined ? 0 : computeRowCount(dense, this.#denseNum);
    const rowCount = columns[0]?.rowCount ?? countDense();
    for (const { tensor, rowCount: tensorRows } of columns) {
      if (tensorRows !== rowCount) {
        rejectTensor(tensor, `it has ${tensorRows} rows, but another tensor has ${rowCount}`);
      }
    }
    if (rowCount === 0) throw new CubeError('INVALID_ARGUMENT', 'the tensors have no rows');
    if (dense !== undefined && !Number.isInteger(rowCount)) {
      rejectTensor(dense, `its ${countValues(dense)} values are not rows of ${this.#denseNum}`);
    }
    return rowCount;
  }

  #dense(tensor: GeneralTensor | undefined, rowCount: number): Float32Array {
    if (tensor === undefined) return new Float32Array(0);
    const values = readFloats(tensor);
    checkShape(tensor, values.length);
    if (computeRowCount(tensor, this.#denseNum) !== rowCount) {
      rejectTensor(
        tensor,
        `expected ${rowCount} rows of ${this.#denseNum} values, got ${values.length} values`,
      );
    }
    const bad = values.findIndex((value) => !Number.isFinite(value));
    if (bad >= 0) rejectTensor(tensor, `value ${bad} is ${values[bad]}: send finite numbers`);
    return values;
  }
}

/** @throws CubeError INVALID_ARGUMENT when shape or lod do not match the values */
function toSlotColumn(tensor: GeneralTensor, range: SlotRange): SlotColumn {
  const size = countValues(tensor);
  checkShape(tensor, size);
  const { lod, shape } = tensor;
  if (lod.length > 0) {
    if (range.count > 1)
      rejectTensor(tensor, `a lod is not supported for a tensor of ${range.count} slots`);
    checkLod(tensor, size);
    const ends = lod.subarray(1);
    return {
      tensor,
      size,
      range,
      rowCount: ends.length,
      ends: hasOneValuePerRow(ends) ? undefined : ends,
    };
  }
  const rowCount = shape[0] ?? size / range.count;
  const width = size / rowCount;
  if (Number.isInteger(rowCount) && width === range.count) {
    return { tensor, size, range, rowCount, ends: undefined };
  }
  if (range.count > 1 || size === 0) {
    rejectTensor(tensor, `its ${size} values are not rows of ${range.count}`);
  }
  const ends = Int32Array.from({ length: rowCount }, (_, row) => (row + 1) * width);
  return { tensor, size, range, rowCount, ends };
}

function checkShape(tensor: GeneralTensor, size: number): void {
  const { shape } = tensor;
  if (shape.length === 0) return;
  const product = shape.reduce((sum, dim) => sum * dim, 1);
  if (product === size && shape.every((dim) => dim >= 0)) return;
  rejectTensor(tensor, `its shape [${shape.join(', ')}] does not match its ${size} values`);
}

function checkLod(tensor: GeneralTensor, size: number): void {
  const { lod } = tensor;
  let isValid = lod[0] === 0 && lod.at(-1) === size;
  for (let i = 1; i < lod.length; i++) isValid &&= lod[i]! >= lod[i - 1]!;
  if (isValid) return;
  rejectTensor(tensor, `its lod must rise from 0 to the number of its values (${size})`);
}

function hasOneValuePerRow(ends: Int32Array): boolean {
  return ends.every((end, row) => end === row + 1);
}

function computeRowCount(tensor: GeneralTensor, width: number): number {
  return countValues(tensor) / width;
}

/** Joins the slots row by row, as strings if the tensors have strings, else as ids. */
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
    forEachValue(columns, rowCount, ends, ({ tensor }, at) => {
      features.push(
        tensor.strings[at] ?? rejectTensor(tensor, 'it has ids, but other tensors have strings'),
      );
    });
    return { features, ...bags };
  }
  const ids = readColumnIds(columns);
  const total = columns.reduce((sum, { size, range }) => sum + size / range.count, 0);
  const keys = new Uint32Array(2 * total);
  let to = 0;
  forEachValue(columns, rowCount, ends, (_, at, slot) => {
    ids[slot]!.copy(at, keys, to);
    to += 2;
  });
  return { keys, ...bags };
}

/** Reads the ids of each column; the columns of a tensor with several slots follow each other. */
function readColumnIds(columns: readonly SlotColumn[]): IdValues[] {
  const ids: IdValues[] = [];
  for (const [slot, column] of columns.entries()) {
    const isSame = slot > 0 && columns[slot - 1] === column;
    ids.push(isSame ? ids[slot - 1]! : readIds(column.tensor));
  }
  return ids;
}

/** Calls `visit` for every value, by row and then by slot, and fills `ends`. */
function forEachValue(
  columns: readonly SlotColumn[],
  rowCount: number,
  ends: Uint32Array | undefined,
  visit: (column: SlotColumn, at: number, slot: number) => void,
): void {
  let count = 0;
  for (let row = 0, bag = 0; row < rowCount; row++) {
    for (let slot = 0; slot < columns.length; slot++, bag++) {
      const column = columns[slot]!;
      const { range } = column;
      const columnEnds = column.ends;
      const start =
        columnEnds === undefined
          ? row * range.count + slot - range.first
          : (columnEnds[row - 1] ?? 0);
      const end = columnEnds === undefined ? start + 1 : columnEnds[row]!;
      for (let at = start; at < end; at++) visit(column, at, slot);
      count += end - start;
      if (ends !== undefined) ends[bag] = count;
    }
  }
}
