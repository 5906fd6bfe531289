/**
 * Reads workflow.prototxt: workflows of built-in operators. A workflow reads requests, runs one or
 * several models with them, and responds with the outputs of each. Other operators are rejected,
 * because ignoring them would change predictions.
 *
 * The models of a workflow are independent of one another, so they always run in parallel, as
 * `workflow_type: "Parallel"` says; a Sequence has the same result. Workflows with operators of the
 * user run as their type says (`pipeline/workflow.ts`).
 */
import type { TextMessage } from '../../proto/text-format.ts';
import type { IgnoredSetting } from './config-report.ts';
import { listIgnoredFields } from './paddle-fields.ts';

const CUBE_OPERATORS = ['GeneralDistKVInferOp', 'GeneralDistKVQuantInferOp'];
/** The node before every workflow, which the first node may name as its dependency. */
const START_NODE = 'startup_op';
const TYPES = ['Sequence', 'Parallel'];
const MODES = ['RO', 'RW'];

type Step = 'read' | 'infer' | 'respond' | 'echo';

/** The step of each built-in operator. */
const OPERATORS: Readonly<Record<string, Step>> = {
  GeneralReaderOp: 'read',
  ReaderOp: 'read',
  GeneralInferOp: 'infer',
  GeneralDistKVInferOp: 'infer',
  GeneralDistKVQuantInferOp: 'infer',
  ClassifyOp: 'infer',
  GeneralResponseOp: 'respond',
  WriteJsonOp: 'respond',
  CommonEchoOp: 'echo',
};

/** What the predecessors of each step may be; undefined is the start of the workflow. */
const PREDECESSORS: Readonly<Record<Step, readonly (Step | undefined)[]>> = {
  read: [undefined],
  infer: [undefined, 'read'],
  respond: ['infer'],
  echo: [undefined, 'echo'],
};

const NODE_IGNORED = { address: 'operators run in this process' };
/** Calls the servers of its address. */
const REMOTE_OPERATOR = 'GeneralRemoteOp';

/** An inference operator; an engine may have the same name. */
export interface InferNode {
  readonly name: string;
  /** It looks up rows in Cube, whatever the engine says. */
  readonly usesCube: boolean;
}

export interface Workflow {
  readonly name: string;
  /** The nodes, and the workflow among those of its service, run one after the other. */
  readonly isSequence: boolean;
  readonly message: TextMessage;
  /** In the order of the file, which is that of the outputs. */
  readonly inferNodes: readonly InferNode[];
  readonly isEcho: boolean;
  /** All nodes, where operators of the user or messages of their own need the pipeline engine. */
  readonly nodes: readonly GraphNode[];
}

/** A node of a workflow that runs on the pipeline engine. */
export interface GraphNode {
  readonly name: string;
  readonly type: string;
  readonly address: readonly string[];
  readonly dependencies: readonly { readonly name: string; readonly isWritten: boolean }[];
}

interface Node extends InferNode {
  readonly message: TextMessage;
  readonly step: Step;
}

export function readWorkflows(
  file: TextMessage,
  ignored: IgnoredSetting[],
): ReadonlyMap<string, Workflow> {
  const workflows = file.messages('workflows').map((message) => readWorkflow(message, ignored));
  return new Map(workflows.map((workflow) => [workflow.name, workflow]));
}

function readWorkflow(message: TextMessage, ignored: IgnoredSetting[]): Workflow {
  const name = message.string('name') ?? message.fail('the workflow has no name');
  const isSequence = readType(message, name) === 'Sequence';
  const nodes = message.messages('nodes').map((node) => readNode(node, name));
  const byName = new Map(nodes.map((node) => [node.name, node]));
  if (byName.size < nodes.length) message.fail(`workflow ${name}: two nodes have the same name`);
  for (const node of nodes) checkDependencies(node, byName, name);
  const inferNodes = nodes.filter(({ step }) => step === 'infer');
  const isEcho = nodes.length > 0 && nodes.every(({ step }) => step === 'echo');
  if (!isEcho && inferNodes.length === 0) {
    message.fail(`workflow ${name}: expected an inference operator, got 0`);
  }
  checkResponse(message, nodes, name);
  listIgnoredFields(message, ['name', 'workflow_type', 'nodes'], {}, ignored);
  for (const node of nodes) {
    listIgnoredFields(node.message, ['name', 'type', 'dependencies'], NODE_IGNORED, ignored);
  }
  const graphNodes = message.messages('nodes').map(readGraphNode);
  return { name, isSequence, message, inferNodes, isEcho, nodes: graphNodes };
}

/**
 * Reads workflows for the pipeline engine, which checks their graph and the types of their nodes.
 */
export function readGraphWorkflows(
  file: TextMessage,
  ignored: IgnoredSetting[],
): ReadonlyMap<string, Workflow> {
  const workflows = file.messages('workflows').map((message): Workflow => {
    const name = message.string('name') ?? message.fail('the workflow has no name');
    const isSequence = readType(message, name) === 'Sequence';
    listIgnoredFields(message, ['name', 'workflow_type', 'nodes'], {}, ignored);
    const nodes = message.messages('nodes').map(readGraphNode);
    const names = nodes.map((node) => node.name);
    const repeated = names.find((one, i) => names.indexOf(one) !== i);
    if (repeated !== undefined) message.fail(`workflow ${name}: two nodes are named ${repeated}`);
    const inferNodes = nodes
      .filter(({ type }) => Object.hasOwn(OPERATORS, type) && OPERATORS[type] === 'infer')
      .map((node) => ({ name: node.name, usesCube: CUBE_OPERATORS.includes(node.type) }));
    return { name, isSequence, message, inferNodes, isEcho: false, nodes };
  });
  return new Map(workflows.map((workflow) => [workflow.name, workflow]));
}

function readGraphNode(message: TextMessage): GraphNode {
  const type = message.string('type') ?? message.fail('the node has no type');
  const address = message.strings('address');
  if (type === REMOTE_OPERATOR && address.length === 0) {
    message.fail(`${type} needs an address, host:port`);
  }
  const dependencies = message.messages('dependencies').map((dependency) => {
    const mode = dependency.string('mode') ?? 'RO';
    if (!MODES.includes(mode)) {
      dependency.fail(`mode "${mode}": expected ${MODES.join(' or ')}`);
    }
    const name = dependency.string('name') ?? dependency.fail('the dependency has no name');
    return { name, isWritten: mode === 'RW' };
  });
  return { name: message.string('name') ?? type, type, address, dependencies };
}

function readType(message: TextMessage, name: string): string {
  const type = message.string('workflow_type') ?? 'Sequence';
  if (TYPES.includes(type)) return type;
  return message.fail(`workflow ${name}: workflow_type "${type}": expected ${TYPES.join(' or ')}`);
}

function readNode(message: TextMessage, workflow: string): Node {
  const type = message.string('type') ?? message.fail(`workflow ${workflow}: a node has no type`);
  const step = Object.hasOwn(OPERATORS, type) ? OPERATORS[type] : undefined;
  if (step === undefined) {
    const known = Object.keys(OPERATORS).join(', ');
    message.fail(`workflow ${workflow}: operator ${type} is not built in (built in: ${known})`);
  }
  const name = message.string('name') ?? type;
  return { name, message, step, usesCube: CUBE_OPERATORS.includes(type) };
}

function checkDependencies(
  { message, name, step }: Node,
  nodes: ReadonlyMap<string, Node>,
  workflow: string,
): void {
  const dependencies = message.messages('dependencies');
  const steps = dependencies.map((dependency) => {
    const mode = dependency.string('mode') ?? 'RO';
    if (!MODES.includes(mode)) {
      dependency.fail(`workflow ${workflow}: mode "${mode}": expected ${MODES.join(' or ')}`);
    }
    const from = dependency.string('name');
    if (from === START_NODE) return undefined;
    const node = nodes.get(from ?? '');
    return node?.step ?? dependency.fail(`workflow ${workflow}: no node is named ${from}`);
  });
  const allowed = PREDECESSORS[step];
  const wrong = steps.findIndex((one) => !allowed.includes(one));
  if (wrong === -1) return;
  const rule = allowed.map((one) => one ?? 'the start').join(' or ');
  (dependencies[wrong] ?? message).fail(
    `workflow ${workflow}: node ${name} (${step}) depends on ${steps[wrong] ?? 'the start'}; ` +
      `here it can depend on ${rule}`,
  );
}

/** A response operator that names its dependencies must name every model. */
function checkResponse(message: TextMessage, nodes: readonly Node[], workflow: string): void {
  const responses = nodes.filter(({ step }) => step === 'respond');
  if (responses.length > 1) message.fail(`workflow ${workflow}: more than one response operator`);
  const [response] = responses;
  const named = response?.message.messages('dependencies').map((one) => one.string('name')) ?? [];
  if (named.length === 0) return;
  const missing = nodes.find(({ step, name }) => step === 'infer' && !named.includes(name));
  if (missing === undefined) return;
  response?.message.fail(
    `workflow ${workflow}: the response does not depend on ${missing.name}; remove that node, or ` +
      'name it',
  );
}

/** The engine of a node: the one with its name, or the only one where the node is the only one. */
export function findEngine(
  { name, message, inferNodes }: Workflow,
  node: InferNode,
  names: readonly string[],
): string {
  if (names.includes(node.name)) return node.name;
  const [first, second] = names;
  if (first !== undefined && second === undefined && inferNodes.length === 1) return first;
  return message.fail(
    `workflow ${name}: no engine is named ${node.name} (engines: ${names.join(', ') || 'none'})`,
  );
}
