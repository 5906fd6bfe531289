/**
 * Workflows of Paddle Serving's C++ server as pipelines: nodes become ops, dependencies edges. In a
 * Parallel workflow a node starts when its dependencies are there. A Sequence runs its nodes one
 * after the other, as the original did: in the order of the file where dependencies allow it.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { suggestNames } from '../../lib/core/nearest-name.ts';
import {
  type AnyOp,
  type AnyResponseOp,
  Op,
  type OpClient,
  type OpInputs,
  type OpOptions,
  RequestOp,
  ResponseOp,
  type StepOp,
} from './op.ts';

export interface WorkflowNode {
  readonly name: string;
  /** An operator that is built in, or of the user's module. */
  readonly type: string;
  /** Servers of a remote operator. */
  readonly address: readonly string[];
  /** Empty: the node reads the request. */
  readonly dependencies: readonly {
    readonly name: string;
    /** The node may change what it reads, so it gets a copy. */
    readonly isWritten: boolean;
  }[];
}

export interface WorkflowDefinition {
  readonly name: string;
  readonly isSequence: boolean;
  readonly nodes: readonly WorkflowNode[];
}

/** An operator of the user's module, by its exported name. */
export type OperatorClass = new (options: OpOptions) => StepOp;

/** The node before every workflow. */
const START_NODE = 'startup_op';
/** Operators that hand their only input on. */
const PASS_OPERATORS: readonly string[] = [
  'GeneralReaderOp',
  'GeneralTextReaderOp',
  'GeneralCopyOp',
  'GeneralResponseOp',
  'GeneralTextResponseOp',
  'ReaderOp',
  'WriteJsonOp',
  'CommonEchoOp',
];
/** Operators that call a model of the process, or a remote one. */
const MODEL_OPERATORS: readonly string[] = [
  'GeneralInferOp',
  'GeneralDistKVInferOp',
  'GeneralDistKVQuantInferOp',
  'ClassifyOp',
  'GeneralRemoteOp',
];

/**
 * @param createClient what a node of MODEL_OPERATORS calls
 * @returns the response op, from which all nodes are found
 * @throws CubeError INVALID_ARGUMENT naming workflow and node
 */
export function buildWorkflow(
  { name: workflow, isSequence, nodes }: WorkflowDefinition,
  operators: ReadonlyMap<string, OperatorClass>,
  createClient: (node: WorkflowNode) => OpClient,
): AnyResponseOp {
  const request = new RequestOp();
  const built = new Map<string, AnyOp>([[START_NODE, request]]);
  /** The last node of a sequence so far. */
  let before: StepOp | undefined;
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const open = new Set<string>();
  const fail = (node: string, problem: string): never => {
    throw new CubeError('INVALID_ARGUMENT', `workflow ${workflow}: node ${node}: ${problem}`);
  };
  const build = (name: string): AnyOp => {
    const known = built.get(name);
    if (known !== undefined) return known;
    const node = byName.get(name) ?? fail(name, 'there is no such node');
    if (open.has(name)) fail(name, 'it depends on itself, through other nodes');
    open.add(name);
    const { dependencies } = node;
    const inputs =
      dependencies.length === 0 ? [request] : dependencies.map((one) => build(one.name));
    const after = isSequence && before !== undefined && !inputs.includes(before) ? [before] : [];
    const op = createOp(node, inputs, after);
    for (const { name: hidden } of after) hideInput(op, hidden);
    built.set(name, op);
    before = op;
    return op;
  };
  const createOp = (
    node: WorkflowNode,
    read: readonly AnyOp[],
    after: readonly AnyOp[],
  ): StepOp => {
    const { name, type } = node;
    const inputs = [...read, ...after];
    const operator = operators.get(type);
    if (operator !== undefined) return withOwnCopies(new operator({ name, inputs }), node);
    const isModel = MODEL_OPERATORS.includes(type);
    if (!isModel && !PASS_OPERATORS.includes(type)) {
      const known = [...operators.keys(), ...PASS_OPERATORS, ...MODEL_OPERATORS];
      fail(name, `there is no operator ${type}; ${suggestNames(type, known)}`);
    }
    if (read.length > 1) {
      fail(name, `${type} has ${read.length} dependencies; join them in an operator of your own`);
    }
    return new Op({ name, inputs, ...(isModel && { client: createClient(node) }) });
  };
  const read = new Set(nodes.flatMap(({ dependencies }) => dependencies.map(({ name }) => name)));
  const last = nodes.filter(({ name }) => !read.has(name));
  for (const { name } of nodes) build(name);
  const [only] = last;
  if (only === undefined || last.length > 1) {
    const names = last.map(({ name }) => name).join(', ');
    throw new CubeError(
      'INVALID_ARGUMENT',
      `workflow ${workflow}: ${last.length} nodes that no other node reads (${names}); the last ` +
        'node makes the response, so there must be one',
    );
  }
  return new ResponseOp({ inputs: [build(only.name)] });
}

/** The op starts after another one whose output it does not read. */
function hideInput(op: StepOp, hidden: string): void {
  const preprocess = op.preprocess.bind(op);
  const postprocess = op.postprocess.bind(op);
  const withoutHidden = ({ [hidden]: _hidden, ...inputs }: OpInputs): OpInputs => inputs;
  op.preprocess = (inputs: OpInputs, context) => preprocess(withoutHidden(inputs), context);
  op.postprocess = (inputs: OpInputs, fetched, context) =>
    postprocess(withoutHidden(inputs), fetched, context);
}

/** Other nodes may read the same values, so a node that changes them gets a copy. */
function withOwnCopies(op: StepOp, { dependencies }: WorkflowNode): StepOp {
  const written = dependencies
    .filter(({ isWritten }) => isWritten)
    .map(({ name }) => (name === START_NODE ? RequestOp.requestName : name));
  if (written.length === 0) return op;
  const preprocess = op.preprocess.bind(op);
  op.preprocess = (inputs: OpInputs, context) => {
    const copies = written.map((name) => [name, structuredClone(inputs[name])]);
    return preprocess({ ...inputs, ...Object.fromEntries(copies) }, context);
  };
  return op;
}
