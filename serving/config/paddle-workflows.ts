/**
 * workflow.prototxt: Sequence workflows of the built-in operators. Reading requests, looking rows up, inferring and answering is
 * what every model here does; an operator that does more is refused by its name, since leaving it out would change answers.
 */
import type { TextMessage } from '../../proto/text-format.ts';
import type { Ignored } from './config-report.ts';
import type { ModelSettings } from './settings.ts';

/** What the built-in operators do; of `infer` a workflow has one. */
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

export interface Workflow {
  readonly name: string;
  readonly message: TextMessage;
  /** The names of its inferring node: an engine may be called the same. */
  readonly inferNode: string | undefined;
  readonly echoes: boolean;
}

export function readWorkflows(
  file: TextMessage,
  ignored: Ignored[],
): ReadonlyMap<string, Workflow> {
  const workflows = file.messages('workflows').map((message) => readWorkflow(message, ignored));
  return new Map(workflows.map((workflow) => [workflow.name, workflow]));
}

function readWorkflow(message: TextMessage, ignored: Ignored[]): Workflow {
  const name = message.string('name') ?? message.fail('a workflow without name');
  const type = message.string('workflow_type') ?? 'Sequence';
  if (type !== 'Sequence') {
    message.fail(
      `workflow ${name}: workflow_type "${type}" was never executed by the original either; make it "Sequence"`,
    );
  }
  const nodes = message.messages('nodes');
  const kinds = nodes.map((node) => kindOf(node, name));
  for (const [i, node] of nodes.entries()) checkOrder(node, nodes[i - 1], name);
  const infer = nodes.filter((_, i) => kinds[i] === 'infer');
  const echoes = kinds.length > 0 && kinds.every((kind) => kind === 'echo');
  if (!echoes && infer.length !== 1) {
    message.fail(`workflow ${name}: expected one inferring operator, got ${infer.length}`);
  }
  for (const node of nodes.filter((one) => one.names.includes('address'))) {
    const setting = `${node.placeOfField('address')} address`;
    ignored.push({ setting, why: 'operators run in this process' });
  }
  return { name, message, inferNode: infer[0]?.string('name'), echoes };
}

function kindOf(node: TextMessage, workflow: string): (typeof OPERATORS)[string] {
  const type = node.string('type') ?? node.fail(`workflow ${workflow}: a node without type`);
  const kind = Object.hasOwn(OPERATORS, type) ? OPERATORS[type] : undefined;
  if (kind !== undefined) return kind;
  const known = Object.keys(OPERATORS).join(', ');
  return node.fail(`workflow ${workflow}: operator ${type} is not built in (built in: ${known})`);
}

/** In a sequence each node depends on the one before it alone. */
function checkOrder(node: TextMessage, before: TextMessage | undefined, workflow: string): void {
  const wanted = before?.string('name');
  for (const dependency of node.messages('dependencies')) {
    const name = dependency.string('name');
    if (name === wanted) continue;
    dependency.fail(
      `workflow ${workflow}: a node depends on ${name}, in a sequence it can only on ${wanted ?? 'nothing, it is the first'}`,
    );
  }
}

/** The engine that a workflow runs: the one of its inferring node's name, else the only one. */
export function engineOf(workflow: Workflow, engines: readonly ModelSettings[]): string {
  const named = engines.find(({ name }) => name === workflow.inferNode);
  if (named !== undefined) return named.name!;
  if (engines.length === 1) return engines[0]!.name!;
  const known = engines.map(({ name }) => name).join(', ');
  return workflow.message.fail(
    `workflow ${workflow.name}: no engine is called ${workflow.inferNode} (engines: ${known || 'none'})`,
  );
}
