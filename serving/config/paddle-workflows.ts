/**
 * Reads workflow.prototxt: Sequence workflows of built-in operators. Every model reads requests,
 * looks up rows, runs the graph and responds. Other operators are rejected, because ignoring them
 * would change predictions.
 */
import type { TextMessage } from '../../proto/text-format.ts';
import type { IgnoredSetting } from './config-report.ts';
import { listIgnoredFields } from './paddle-fields.ts';

const CUBE_OPERATORS = ['GeneralDistKVInferOp', 'GeneralDistKVQuantInferOp'];
/** The node before every workflow, which the first node may name as its dependency. */
const START_NODE = 'startup_op';

/** The step of each built-in operator. A workflow has exactly one `infer` operator. */
const OPERATORS: Readonly<Record<string, 'read' | 'infer' | 'respond' | 'echo'>> = {
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

const NODE_IGNORED = { address: 'operators run in this process' };

export interface Workflow {
  readonly name: string;
  readonly message: TextMessage;
  /** The name of the inference node; an engine may have the same name. */
  readonly inferNode: string | undefined;
  /** The inference operator looks up rows in Cube, whatever the engine says. */
  readonly usesCube: boolean;
  readonly isEcho: boolean;
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
  const type = message.string('workflow_type') ?? 'Sequence';
  if (type !== 'Sequence') {
    message.fail(
      `workflow ${name}: workflow_type "${type}" is not supported (nor by Paddle Serving); ` +
        'use "Sequence"',
    );
  }
  const nodes = message.messages('nodes');
  const kinds = nodes.map((node) => getOperatorKind(node, name));
  for (const [i, node] of nodes.entries()) checkOrder(node, nodes[i - 1], name);
  const infer = nodes.filter((_, i) => kinds[i] === 'infer');
  const echoes = kinds.length > 0 && kinds.every((kind) => kind === 'echo');
  if (!echoes && infer.length !== 1) {
    message.fail(`workflow ${name}: expected one inference operator, got ${infer.length}`);
  }
  listIgnoredFields(message, ['name', 'workflow_type', 'nodes'], {}, ignored);
  for (const node of nodes) {
    listIgnoredFields(node, ['name', 'type', 'dependencies'], NODE_IGNORED, ignored);
  }
  return {
    name,
    message,
    inferNode: infer[0]?.string('name'),
    usesCube: CUBE_OPERATORS.includes(infer[0]?.string('type') ?? ''),
    isEcho: echoes,
  };
}

function getOperatorKind(node: TextMessage, workflow: string): (typeof OPERATORS)[string] {
  const type = node.string('type') ?? node.fail(`workflow ${workflow}: a node has no type`);
  const kind = Object.hasOwn(OPERATORS, type) ? OPERATORS[type] : undefined;
  if (kind !== undefined) return kind;
  const known = Object.keys(OPERATORS).join(', ');
  return node.fail(`workflow ${workflow}: operator ${type} is not built in (built in: ${known})`);
}

/** In a sequence, each node depends only on the node before it. */
function checkOrder(node: TextMessage, before: TextMessage | undefined, workflow: string): void {
  const expected = before === undefined ? START_NODE : before.string('name');
  for (const dependency of node.messages('dependencies')) {
    const name = dependency.string('name');
    if (name === expected) continue;
    dependency.fail(
      `workflow ${workflow}: a node depends on ${name}, but in a sequence it must depend on ` +
        (before === undefined ? 'nothing, because it is the first node' : expected),
    );
  }
}

/** The engine of a workflow: the one with the name of its inference node, or the only one. */
export function findEngine(workflow: Workflow, names: readonly string[]): string {
  const [first, second] = names;
  if (workflow.inferNode !== undefined && names.includes(workflow.inferNode)) {
    return workflow.inferNode;
  }
  if (first !== undefined && second === undefined) return first;
  return workflow.message.fail(
    `workflow ${workflow.name}: no engine is named ${workflow.inferNode} (engines: ` +
      `${names.join(', ') || 'none'})`,
  );
}
