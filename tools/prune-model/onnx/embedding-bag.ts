/**
 * Lookups that also pool: PyTorch's EmbeddingBag, exported as one ATen node or as a Loop that takes
 * the ids of each bag, gathers their rows and reduces them. Only the exact form is recognised;
 * other forms are left to the other rules.
 */
import { readIntegerConstant } from './constants.ts';
import { createBodyScope, type GraphScope } from './graph-index.ts';
import { type GraphProto, getIntAttribute, type NodeProto, refuseNode } from './onnx-model.ts';

export interface EmbeddingBags {
  readonly table: string;
  /** The list of the ids of all bags. */
  readonly ids: string;
  /** The graph input that holds the position of each bag's first id in that list. */
  readonly offsets: string;
  /** The row of that input, when it holds the offsets of several lists. */
  readonly offsetsRow: number | undefined;
  /** The last offset is the end of the last bag, not the start of another bag. */
  readonly includesLast: boolean;
  readonly pooling: 'sum' | 'mean';
  /** An id whose row is not pooled. */
  readonly paddingId: number | undefined;
}

export function findEmbeddingBags(node: NodeProto, scope: GraphScope): EmbeddingBags | undefined {
  if (node.opType === 'ATen') return readAtenBags(node, scope);
  const [body, ...others] = node.bodies;
  const isLoop = node.opType === 'Loop' && node.domain === '';
  if (!isLoop || body === undefined || others.length > 0) return undefined;
  return new BagLoopMatcher(node, body, scope).match();
}

function readAtenBags(node: NodeProto, scope: GraphScope): EmbeddingBags | undefined {
  if (node.attributes.get('operator')?.text !== 'embedding_bag') return undefined;
  const [table = '', ids = '', offsets = '', weights = ''] = node.inputs;
  const mode = getIntAttribute(node, 'mode', 0);
  if (mode !== 0 && mode !== 1) {
    refuseNode(
      node,
      table,
      'bags pooled by their maximum (mode 2) are not supported; use sum or mean',
    );
  }
  if (weights !== '')
    refuseNode(
      node,
      weights,
      'bags with a weight for each id (per_sample_weights) are not supported',
    );
  const origin = findOffsetsInput(offsets, scope);
  if (origin === undefined) {
    refuseNode(node, offsets, 'its offsets must be an input of the model, or a row of one');
  }
  const padding = getIntAttribute(node, 'padding_idx', -1);
  return {
    table,
    ids,
    ...origin,
    includesLast: getIntAttribute(node, 'include_last_offset', 0) === 1,
    pooling: mode === 0 ? 'sum' : 'mean',
    paddingId: padding < 0 ? undefined : padding,
  };
}

type OffsetsSource = Pick<EmbeddingBags, 'offsets' | 'offsetsRow'>;

/** The graph input that holds a value or has it as a row. */
function findOffsetsInput(name: string, scope: GraphScope): OffsetsSource | undefined {
  const node = scope.findProducer(name);
  const [source = '', index = ''] = node?.inputs ?? [];
  if (node?.opType === 'Identity' && node.domain === '') return findOffsetsInput(source, scope);
  const input = scope.findRuntimeInput(node === undefined ? name : source);
  if (node === undefined) {
    return input?.shape?.length === 1 ? { offsets: name, offsetsRow: undefined } : undefined;
  }
  const [rows] = input?.shape ?? [];
  const row = readIntegerConstant(scope.origins.get(index).source, 1);
  const isRow =
    node.opType === 'Gather' && node.domain === '' && getIntAttribute(node, 'axis', 0) === 0;
  if (!isRow || input?.shape?.length !== 2 || row?.dims.length !== 0) return undefined;
  const given = Number(row.values[0]);
  const at = given < 0 ? given + (typeof rows === 'number' ? rows : Number.NaN) : given;
  return at >= 0 ? { offsets: source, offsetsRow: at } : undefined;
}

/** Recognises the Loop that PyTorch writes for an EmbeddingBag, opset 11 and later. */
class BagLoopMatcher {
  readonly #node: NodeProto;
  readonly #body: GraphProto;
  readonly #outer: GraphScope;
  readonly #inner: GraphScope;

  constructor(node: NodeProto, body: GraphProto, outer: GraphScope) {
    this.#node = node;
    this.#body = body;
    this.#outer = outer;
    this.#inner = createBodyScope(body, outer);
  }

  match(): EmbeddingBags | undefined {
    const { inputs, outputs } = this.#body;
    const [, condition] = this.#node.inputs;
    const [nextCondition, result] = outputs;
    if (this.#node.inputs.length !== 2 || inputs.length !== 2 || outputs.length !== 2)
      return undefined;
    if (condition === undefined || !this.#isAlwaysTrue(condition, this.#outer)) return undefined;
    if (nextCondition === undefined || result === undefined) return undefined;
    if (!this.#isAlwaysTrue(nextCondition.name, this.#inner)) return undefined;
    const reduce = this.#inner.findProducer(result.name);
    if (reduce === undefined || !this.#isRowReduction(reduce)) return undefined;
    const pooling = getPooling(reduce);
    if (pooling === undefined) return undefined;
    const gather = this.#findNode(reduce.inputs[0], 'Gather');
    if (gather === undefined || getIntAttribute(gather, 'axis', 0) !== 0) return undefined;
    const slice = this.#findNode(gather.inputs[1], 'Slice');
    const [ids = '', start = '', end = '', axes = '', steps = ''] = slice?.inputs ?? [];
    if (
      slice === undefined ||
      this.#formatIntegers(axes) !== '0' ||
      this.#formatIntegers(steps, '1') !== '1'
    )
      return undefined;
    const starts = this.#findPerBagList(start);
    const ends = this.#findPerBagList(end);
    const [table = ''] = gather.inputs;
    const bounds =
      starts !== undefined && ends !== undefined ? this.#findBounds(starts, ends, ids) : undefined;
    if (bounds === undefined || this.#inner.origins.get(table).dependence !== 'constant') {
      return undefined;
    }
    return { ...bounds, table, ids, pooling, paddingId: undefined };
  }

  #isAlwaysTrue(name: string, scope: GraphScope): boolean {
    const node = scope.findProducer(name) ?? this.#outer.findProducer(name);
    if (node?.opType === 'Cast' || node?.opType === 'Identity') {
      return this.#isAlwaysTrue(node.inputs[0] ?? '', this.#outer);
    }
    const value = readIntegerConstant(scope.origins.get(name).source, 1);
    return value?.values[0] === 1n;
  }

  /** ReduceSum or ReduceMean over the first axis. */
  #isRowReduction(node: NodeProto): boolean {
    const axes =
      node.attributes.get('axes')?.ints.join() ?? this.#formatIntegers(node.inputs[1] ?? '');
    return axes === '0' && node.attributes.get('keepdims')?.int === 0n;
  }

  /** The node of this type that computes a value, in the body or outside. */
  #findNode(name: string | undefined, opType: string): NodeProto | undefined {
    const node = this.#inner.findProducer(name ?? '') ?? this.#outer.findProducer(name ?? '');
    return node?.opType === opType && node.domain === '' ? node : undefined;
  }

  #formatIntegers(name: string, defaultText = ''): string {
    if (name === '') return defaultText;
    const values = readIntegerConstant(this.#inner.origins.get(name).source, 8)?.values;
    return values === undefined ? 'unknown' : Array.from(values).join();
  }

  /** The list from which each bag takes the element at its own index. */
  #findPerBagList(name: string): string | undefined {
    const gather = this.#findNode(this.#findNode(name, 'Unsqueeze')?.inputs[0], 'Gather');
    const [index] = this.#body.inputs;
    if (gather === undefined || index === undefined) return undefined;
    const isOwn = gather.inputs[1] === index.name && getIntAttribute(gather, 'axis', 0) === 0;
    return isOwn ? gather.inputs[0] : undefined;
  }

  /** Checks that `ends` is `starts` without its first element, with one run per end. */
  #findBounds(
    starts: string,
    ends: string,
    ids: string,
  ): (OffsetsSource & Pick<EmbeddingBags, 'includesLast'>) | undefined {
    const slice = this.#findNode(ends, 'Slice');
    const [source = '', from = '', to = '', axes = '', steps = ''] = slice?.inputs ?? [];
    const isTail =
      source === starts &&
      this.#formatIntegers(from) === '1' &&
      this.#formatIntegers(axes, '0') === '0';
    if (
      !isTail ||
      Number(this.#formatIntegers(to)) < 2 ** 31 - 1 ||
      this.#formatIntegers(steps, '1') !== '1'
    )
      return undefined;
    const [runCount] = this.#node.inputs;
    if (!this.#isLength(runCount, ends)) return undefined;
    const concat = this.#findNode(starts, 'Concat');
    if (concat === undefined) {
      const offsets = findOffsetsInput(starts, this.#outer);
      return offsets === undefined ? undefined : { ...offsets, includesLast: true };
    }
    const offsets = findOffsetsInput(concat.inputs[0] ?? '', this.#outer);
    const length = this.#findNode(concat.inputs[1], 'Unsqueeze')?.inputs[0] ?? '';
    const isWhole = concat.inputs.length === 2 && this.#isLength(length, ids);
    return offsets !== undefined && isWhole ? { ...offsets, includesLast: false } : undefined;
  }

  #isLength(name: string | undefined, list: string): boolean {
    const gather = this.#findNode(name, 'Gather');
    const shape = this.#findNode(gather?.inputs[0], 'Shape');
    return shape?.inputs[0] === list && this.#formatIntegers(gather?.inputs[1] ?? '') === '0';
  }
}

function getPooling({ opType, domain }: NodeProto): 'sum' | 'mean' | undefined {
  if (domain !== '') return undefined;
  if (opType === 'ReduceSum') return 'sum';
  return opType === 'ReduceMean' ? 'mean' : undefined;
}
