/**
 * Lookups that also pool: PyTorch's EmbeddingBag, exported as one ATen node, or as a Loop that takes the slice of ids of each bag,
 * gathers its rows and reduces them. Only the exact form is recognised; anything else is left to the other rules.
 */
import { integersOf } from './constants.ts';
import { bodyFrame, type Frame } from './graph-index.ts';
import type { OnnxGraph, OnnxNode } from './onnx-model.ts';
import { refuse } from './refusal.ts';

export interface Bags {
  readonly table: string;
  /** The list of the ids of all bags. */
  readonly ids: string;
  /** Where each bag begins in that list: an input of the graph. */
  readonly offsets: string;
  /** Which row of that input, when it holds the offsets of several lists. */
  readonly offsetsRow: number | undefined;
  /** The last offset is the end of the last bag, not the beginning of another. */
  readonly includesLast: boolean;
  readonly pooling: 'sum' | 'mean';
  /** An id whose rows do not count. */
  readonly paddingId: number | undefined;
}

export function findBags(node: OnnxNode, frame: Frame): Bags | undefined {
  if (node.opType === 'ATen') return atenBags(node, frame);
  if (node.opType === 'Loop' && node.domain === '' && node.bodies.length === 1) {
    return new BagLoop(node, node.bodies[0]!, frame).find();
  }
  return undefined;
}

function atenBags(node: OnnxNode, frame: Frame): Bags | undefined {
  if (node.attributes.get('operator')?.text !== 'embedding_bag') return undefined;
  const [table = '', ids = '', offsets = '', weights = ''] = node.inputs;
  const int = (name: string, otherwise: number): number =>
    Number(node.attributes.get(name)?.int ?? otherwise);
  const mode = int('mode', 0);
  if (mode !== 0 && mode !== 1) {
    refuse(node, table, 'bags pooled by their maximum (mode 2) are not supported');
  }
  if (weights !== '') refuse(node, weights, 'bags with a weight for each id are not supported');
  const origin = originOf(offsets, frame);
  if (origin === undefined) {
    refuse(node, offsets, 'its offsets are not an input of the model');
  }
  const padding = int('padding_idx', -1);
  return {
    table,
    ids,
    ...origin,
    includesLast: int('include_last_offset', 0) === 1,
    pooling: mode === 0 ? 'sum' : 'mean',
    paddingId: padding < 0 ? undefined : padding,
  };
}

type Offsets = Pick<Bags, 'offsets' | 'offsetsRow'>;

/** The graph input that a value is, or is a row of. */
function originOf(name: string, frame: Frame): Offsets | undefined {
  const node = frame.producer(name);
  const [source = '', index = ''] = node?.inputs ?? [];
  if (node?.opType === 'Identity' && node.domain === '') return originOf(source, frame);
  const input = frame.runtimeInput(node === undefined ? name : source);
  if (node === undefined) {
    return input?.shape?.length === 1 ? { offsets: name, offsetsRow: undefined } : undefined;
  }
  const [rows] = input?.shape ?? [];
  const row = integersOf(frame.scope.fact(index).source, 1);
  const isRow = node.opType === 'Gather' && node.domain === '' && axisOf(node) === 0;
  if (!isRow || input?.shape?.length !== 2 || row?.dims.length !== 0) return undefined;
  const given = Number(row.values[0]);
  const at = given < 0 ? given + (typeof rows === 'number' ? rows : Number.NaN) : given;
  return at >= 0 ? { offsets: source, offsetsRow: at } : undefined;
}

/** The Loop that PyTorch writes for an EmbeddingBag, opset 11 and later. */
class BagLoop {
  readonly #node: OnnxNode;
  readonly #body: OnnxGraph;
  readonly #outer: Frame;
  readonly #inner: Frame;

  constructor(node: OnnxNode, body: OnnxGraph, outer: Frame) {
    this.#node = node;
    this.#body = body;
    this.#outer = outer;
    this.#inner = bodyFrame(body, outer);
  }

  find(): Bags | undefined {
    const { inputs, outputs } = this.#body;
    if (this.#node.inputs.length !== 2 || inputs.length !== 2 || outputs.length !== 2)
      return undefined;
    if (!this.#isAlwaysTrue(this.#node.inputs[1]!, this.#outer)) return undefined;
    if (!this.#isAlwaysTrue(outputs[0]!.name, this.#inner)) return undefined;
    const reduce = this.#inner.producer(outputs[1]!.name);
    const pooling = reduce && poolingOf(reduce);
    if (pooling === undefined || !this.#reducesRows(reduce!)) return undefined;
    const gather = this.#made(reduce!.inputs[0], 'Gather');
    if (gather === undefined || axisOf(gather) !== 0) return undefined;
    const slice = this.#made(gather.inputs[1], 'Slice');
    const [ids = '', start = '', end = '', axes = '', steps = ''] = slice?.inputs ?? [];
    if (slice === undefined || this.#ints(axes) !== '0' || this.#ints(steps, '1') !== '1')
      return undefined;
    const starts = this.#perBag(start);
    const ends = this.#perBag(end);
    const bounds =
      starts !== undefined && ends !== undefined ? this.#bounds(starts, ends, ids) : undefined;
    if (
      bounds === undefined ||
      this.#inner.scope.fact(gather.inputs[0] ?? '').dependence !== 'constant'
    ) {
      return undefined;
    }
    return { ...bounds, table: gather.inputs[0]!, ids, pooling, paddingId: undefined };
  }

  #isAlwaysTrue(name: string, frame: Frame): boolean {
    const node = frame.producer(name) ?? this.#outer.producer(name);
    if (node?.opType === 'Cast' || node?.opType === 'Identity') {
      return this.#isAlwaysTrue(node.inputs[0] ?? '', this.#outer);
    }
    const value = integersOf(frame.scope.fact(name).source, 1);
    return value?.values[0] === 1n;
  }

  /** ReduceSum or ReduceMean over the first axis. */
  #reducesRows(node: OnnxNode): boolean {
    const axes = node.attributes.get('axes')?.ints.join() ?? this.#ints(node.inputs[1] ?? '');
    return axes === '0' && node.attributes.get('keepdims')?.int === 0n;
  }

  /** The node of this kind that makes a value in the body, or outside. */
  #made(name: string | undefined, opType: string): OnnxNode | undefined {
    const node = this.#inner.producer(name ?? '') ?? this.#outer.producer(name ?? '');
    return node?.opType === opType && node.domain === '' ? node : undefined;
  }

  #ints(name: string, otherwise = ''): string {
    if (name === '') return otherwise;
    const values = integersOf(this.#inner.scope.fact(name).source, 8)?.values;
    return values === undefined ? 'unknown' : Array.from(values).join();
  }

  /** The list of which a bag takes its own element. */
  #perBag(name: string): string | undefined {
    const gather = this.#made(this.#made(name, 'Unsqueeze')?.inputs[0], 'Gather');
    const isOwn = gather?.inputs[1] === this.#body.inputs[0]!.name && axisOf(gather) === 0;
    return isOwn ? gather.inputs[0] : undefined;
  }

  /** ends is starts without its first element, and the Loop runs once for each of them. */
  #bounds(
    starts: string,
    ends: string,
    ids: string,
  ): (Offsets & Pick<Bags, 'includesLast'>) | undefined {
    const slice = this.#made(ends, 'Slice');
    const [source = '', from = '', to = '', axes = '', steps = ''] = slice?.inputs ?? [];
    const isTail = source === starts && this.#ints(from) === '1' && this.#ints(axes, '0') === '0';
    if (!isTail || Number(this.#ints(to)) < 2 ** 31 - 1 || this.#ints(steps, '1') !== '1')
      return undefined;
    if (!this.#isLengthOf(this.#node.inputs[0]!, ends)) return undefined;
    const concat = this.#made(starts, 'Concat');
    if (concat === undefined) {
      const offsets = originOf(starts, this.#outer);
      return offsets === undefined ? undefined : { ...offsets, includesLast: true };
    }
    const offsets = originOf(concat.inputs[0] ?? '', this.#outer);
    const length = this.#made(concat.inputs[1], 'Unsqueeze')?.inputs[0] ?? '';
    const isWhole = concat.inputs.length === 2 && this.#isLengthOf(length, ids);
    return offsets !== undefined && isWhole ? { ...offsets, includesLast: false } : undefined;
  }

  #isLengthOf(name: string, list: string): boolean {
    const gather = this.#made(name, 'Gather');
    const shape = this.#made(gather?.inputs[0], 'Shape');
    return shape?.inputs[0] === list && this.#ints(gather?.inputs[1] ?? '') === '0';
  }
}

function poolingOf({ opType, domain }: OnnxNode): 'sum' | 'mean' | undefined {
  if (domain !== '') return undefined;
  if (opType === 'ReduceSum') return 'sum';
  return opType === 'ReduceMean' ? 'mean' : undefined;
}

function axisOf(node: OnnxNode): number {
  return Number(node.attributes.get('axis')?.int ?? 0n);
}
