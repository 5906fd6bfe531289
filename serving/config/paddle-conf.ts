/**
 * Reads Paddle Serving's conf folder unchanged. The flag file names service.prototxt,
 * workflow.prototxt and resource.prototxt; resource.prototxt names model_toolkit.prototxt,
 * general_model.prototxt and cube.conf. The workflow of each service becomes a model. Settings
 * without effect are listed with the reason; settings that would change predictions are rejected.
 */
import { dirname, join, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists, readText } from '../../lib/platform/files.ts';
import { parseTextFormat, type TextMessage } from '../../proto/text-format.ts';
import type { IgnoredSetting } from './config-report.ts';
import { listEngines, readAliases, readEngine, readResources } from './paddle-engines.ts';
import { listIgnoredFields } from './paddle-fields.ts';
import { type PaddleConfLocation, readGflags } from './paddle-gflags.ts';
import {
  findEngine,
  type InferNode,
  readGraphWorkflows,
  readWorkflows,
  type Workflow,
} from './paddle-workflows.ts';
import type { ServingSettings } from './serving-config.ts';
import type { ModelSettings } from './settings.ts';

const FILE_BYTES_MAX = 4 << 20;
const SERVICE_FIELDS = ['name', 'workflows', 'merger', 'enable_map_request_to_workflow'];
/** The only merger of the original: the outputs of all workflows, in their order. */
const MERGER = 'default';
const SERVICE_IGNORED: Readonly<Record<string, string>> = {
  request_field_key: 'without enable_map_request_to_workflow it has no effect',
  value_mapped_workflows: 'without enable_map_request_to_workflow it has no effect',
};

/** A service with messages of its own; its workflows run on the pipeline engine. */
export interface WorkflowServiceConfig {
  readonly name: string;
  /** Each gets the request; their responses are merged. */
  readonly workflows: readonly string[];
  /** The field of the request whose value chooses the workflows, instead of all. */
  readonly mapping?: {
    readonly field: string;
    readonly workflows: ReadonlyMap<string, readonly string[]>;
  };
}

/** The services of a conf folder whose messages are in `.proto` files. */
export interface WorkflowServices {
  readonly services: readonly WorkflowServiceConfig[];
  readonly workflows: readonly Workflow[];
  /** Workflow → node → the model that it predicts with. */
  readonly modelOfNode: ReadonlyMap<string, ReadonlyMap<string, string>>;
}

export interface PaddleConf {
  readonly settings: ServingSettings;
  readonly workflowServices?: WorkflowServices;
  readonly ignored: readonly IgnoredSetting[];
}

/** @param folder the conf folder; Paddle Serving is started in its parent */
export function locateConfFolder(folder: string): PaddleConfLocation {
  const path = resolve(folder);
  return {
    root: dirname(path),
    folder: path,
    flagFile: join(path, 'gflags.conf'),
    needsFlagFile: false,
  };
}

/** @param root the folder in which Paddle Serving is started */
export function locateFlagFile(flagFile: string, root: string = process.cwd()): PaddleConfLocation {
  return {
    root,
    folder: resolve(root, 'conf'),
    flagFile: resolve(root, flagFile),
    needsFlagFile: true,
  };
}

/** The parts of a configuration that are already read. */
interface ConfState {
  readonly ignored: IgnoredSetting[];
  readonly engineNames: readonly string[];
  readonly workflows: ReadonlyMap<string, Workflow>;
}

/**
 * @param ownMessages the services have messages of their own
 * @throws CubeError INVALID_ARGUMENT with file, line and column; NOT_FOUND
 */
export function readPaddleConf(location: PaddleConfLocation, ownMessages = false): PaddleConf {
  const ignored: IgnoredSetting[] = [];
  const flags = readGflags(location, ignored);
  const serviceFile = parseTextFile(flags.servicePath, 'service');
  const workflowFile = parseTextFile(flags.workflowPath, 'workflow');
  const workflows = (ownMessages ? readGraphWorkflows : readWorkflows)(workflowFile, ignored);
  const resources = readResources(parseTextFile(flags.resourcePath, 'resource'), flags, ignored);
  const engines = listEngines(resources.toolkitPaths.map((path) => parseTextFile(path)));
  const state = { ignored, engineNames: [...engines.keys()], workflows };
  listIgnoredFields(serviceFile, ['port', 'services'], {}, ignored);
  const workflowServices = ownMessages ? readWorkflowServices(serviceFile, state) : undefined;
  const services = ownMessages
    ? []
    : serviceFile.messages('services').flatMap((node) => readService(node, state) ?? []);
  if (serviceFile.messages('services').length === 0) {
    serviceFile.fail('no services: nothing to serve');
  }
  const port = serviceFile.integer('port', 0, 65_535) || flags.port;
  const aliases = new Map(
    resources.generalModelPaths.flatMap((path) => [...readAliases(parseTextFile(path), ignored)]),
  );
  const models: ModelSettings[] = [];
  const nodes = [...services.flatMap(({ engines: used }) => used), ...listUsed(workflowServices)];
  for (const [name, engine] of engines) {
    const users = nodes.filter(({ model }) => model === name);
    const usesCube = users.some((node) => node.usesCube);
    if (users.length > 0) models.push(readEngine(engine, { flags, resources, ignored, usesCube }));
    else ignored.push({ setting: `engine ${name}`, reason: 'no workflow uses it' });
  }
  const named = services.map(({ name, engines: used }) => {
    const [first] = used;
    const list = used.map(({ name: node, model }) => ({ name: node, model }));
    return {
      name,
      model: first.model,
      ...(list.length > 1 && { engines: list }),
      ...(aliases.size > 0 && { aliases }),
    };
  });
  const settings = { ...flags.process, port, models, services: named };
  if (workflowServices === undefined) return { settings, ignored };
  return { settings: { ...settings, hasPipeline: true }, workflowServices, ignored };
}

/** @param kind the file's flags are `<kind>_path` and `<kind>_file` */
function parseTextFile(path: string, kind?: string): TextMessage {
  if (!fileExists(path)) {
    const flag = kind === 'service' ? 'inferservice' : kind;
    const remedy =
      flag === undefined
        ? 'correct its path in resource.prototxt'
        : `give its path with --${flag}_path and --${flag}_file in the flag file`;
    throw new CubeError('NOT_FOUND', `${path}: no such file; ${remedy}`);
  }
  return parseTextFormat(readText(path, FILE_BYTES_MAX), path);
}

/** An inference node with its engine. */
interface UsedEngine extends InferNode {
  readonly model: string;
}

interface NamedService {
  readonly name: string;
  /** Those of all workflows of the service. */
  readonly engines: readonly [UsedEngine, ...UsedEngine[]];
}

function readWorkflowServices(
  file: TextMessage,
  { ignored, engineNames, workflows }: ConfState,
): WorkflowServices {
  const check = (node: TextMessage, service: string, workflow: string): string => {
    if (workflows.has(workflow)) return workflow;
    const known = [...workflows.keys()].join(', ');
    return node.fail(`service ${service}: no workflow ${workflow} (workflows: ${known})`);
  };
  const services = file.messages('services').map((node): WorkflowServiceConfig => {
    const name = node.string('name') ?? node.fail('the service has no name');
    checkMerger(node, name);
    const isMapped = node.boolean('enable_map_request_to_workflow');
    listIgnoredFields(
      node,
      [...SERVICE_FIELDS, ...(isMapped ? Object.keys(SERVICE_IGNORED) : [])],
      SERVICE_IGNORED,
      ignored,
    );
    if (!isMapped) {
      const names = node.strings('workflows');
      if (names.length === 0) node.fail(`service ${name} has no workflows`);
      return { name, workflows: names.map((one) => check(node, name, one)) };
    }
    const field =
      node.string('request_field_key') ??
      node.fail(`service ${name}: request_field_key is missing`);
    const entries = node.messages('value_mapped_workflows').map((mapped) => {
      const value =
        mapped.string('request_field_value') ??
        mapped.fail(`service ${name}: request_field_value is missing`);
      const names = (mapped.string('workflow') ?? '').split(',').map((one) => one.trim());
      return [value, names.map((one) => check(mapped, name, one))] as const;
    });
    return { name, workflows: [], mapping: { field, workflows: new Map(entries) } };
  });
  const modelOfNode = new Map(
    [...workflows].map(([name, workflow]) => [
      name,
      new Map(
        workflow.inferNodes.map((node) => [node.name, findEngine(workflow, node, engineNames)]),
      ),
    ]),
  );
  return { services, workflows: [...workflows.values()], modelOfNode };
}

/** The inference nodes of the workflows, with their models. */
function listUsed(services: WorkflowServices | undefined): readonly UsedEngine[] {
  if (services === undefined) return [];
  return services.workflows.flatMap(({ name, inferNodes }) =>
    inferNodes.map((node) => ({
      ...node,
      model: services.modelOfNode.get(name)?.get(node.name) ?? node.name,
    })),
  );
}

function checkMerger(node: TextMessage, service: string): void {
  const merger = node.string('merger') ?? MERGER;
  if (merger === MERGER) return;
  node.fail(`service ${service}: merger "${merger}" is not built in; use "${MERGER}"`);
}

/** @returns undefined for a service that only echoes, because it predicts nothing */
function readService(
  node: TextMessage,
  { ignored, engineNames, workflows }: ConfState,
): NamedService | undefined {
  const name = node.string('name') ?? node.fail('the service has no name');
  if (node.boolean('enable_map_request_to_workflow')) {
    node.fail(
      `service ${name}: enable_map_request_to_workflow: messages of the general model have no ` +
        'text field to choose a workflow by; give each workflow its own service, or messages of ' +
        'your own with --proto',
    );
  }
  checkMerger(node, name);
  listIgnoredFields(node, SERVICE_FIELDS, SERVICE_IGNORED, ignored);
  const names = node.strings('workflows');
  if (names.length === 0) node.fail(`service ${name} has no workflows`);
  const known = [...workflows.keys()].join(', ');
  const used = names.map((workflow) => {
    return (
      workflows.get(workflow) ??
      node.fail(`service ${name}: no workflow ${workflow} (workflows: ${known})`)
    );
  });
  const [first, ...others] = used.flatMap((workflow) =>
    workflow.inferNodes.map((infer) => {
      return { ...infer, model: findEngine(workflow, infer, engineNames) };
    }),
  );
  if (first === undefined) {
    const why = 'its workflow only echoes; use /healthz to check the process';
    ignored.push({ setting: `${node.location} service ${name}`, reason: why });
    return undefined;
  }
  const repeated = others.find(({ name: one }, i) => {
    return [first, ...others.slice(0, i)].some((before) => before.name === one);
  });
  if (repeated !== undefined) {
    node.fail(
      `service ${name}: two nodes are named ${repeated.name}; callers tell outputs apart by the ` +
        'names of nodes, so rename one',
    );
  }
  return { name, engines: [first, ...others] };
}
