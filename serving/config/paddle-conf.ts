/**
 * Paddle Serving's own conf folder, read as it is: gflags.conf names service.prototxt, workflow.prototxt and resource.prototxt; the
 * last names model_toolkit.prototxt, general_model.prototxt and cube.conf. Every service's workflow becomes a model of ours; what
 * has no meaning here is listed, with why; what would change answers is refused.
 */
import { resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists, readText } from '../../lib/platform/files.ts';
import { parseTextFormat, type TextMessage } from '../../proto/text-format.ts';
import type { Ignored } from './config-report.ts';
import { type Resources, readAliases, readEngines, readResources } from './paddle-engines.ts';
import { type Gflags, readGflags } from './paddle-gflags.ts';
import { engineOf, readWorkflows, type Workflow } from './paddle-workflows.ts';
import type { ServiceConfig, ServingSettings } from './serving-config.ts';
import type { ModelSettings } from './settings.ts';

const FILE_BYTES_MAX = 4 << 20;
const SERVICE_FIELDS = ['name', 'workflows'];
const SERVICE_IGNORED: Readonly<Record<string, string>> = {
  merger: 'a service has one workflow',
  request_field_key: 'without enable_map_request_to_workflow it has no effect',
  value_mapped_workflows: 'without enable_map_request_to_workflow it has no effect',
};

export interface PaddleConf {
  readonly settings: ServingSettings;
  readonly ignored: readonly Ignored[];
}

/** A configuration as it is read: what was understood so far, and what is ignored. */
interface Reading {
  readonly flags: Gflags;
  readonly ignored: Ignored[];
  readonly resources: Resources;
  readonly engines: readonly ModelSettings[];
  readonly aliases: ReadonlyMap<string, string>;
}

/**
 * @param folder the conf folder; paths in its files are meant from where the original is started, the folder above it
 * @throws CubeError INVALID_ARGUMENT with file, line and column; NOT_FOUND
 */
export function readPaddleConf(folder: string): PaddleConf {
  const ignored: Ignored[] = [];
  const flags = readGflags(resolve(folder), ignored);
  const services = readFile(flags.servicePath);
  const workflows = readWorkflows(readFile(flags.workflowPath), ignored);
  const resources = readResources(readFile(flags.resourcePath), flags, ignored);
  const engines = resources.toolkitPaths.flatMap((path) =>
    readEngines(readFile(path), { flags, resources, ignored }),
  );
  const aliases = new Map(
    resources.generalModelPaths.flatMap((path) => [...readAliases(readFile(path))]),
  );
  const reading = { flags, ignored, resources, engines, aliases };
  const found = services.messages('services').map((node) => readService(node, workflows, reading));
  if (found.length === 0) services.fail('no services: nothing would be served');
  const port = services.integer('port', 0, 65_535) ?? flags.port;
  const served = found.filter((service) => service !== undefined);
  const wanted = engines.filter(({ name }) => served.some(({ model }) => model === name));
  for (const { name } of engines) {
    if (!wanted.some((engine) => engine.name === name)) {
      ignored.push({ setting: `engine ${name}`, why: 'no workflow names it' });
    }
  }
  return { settings: { ...flags.process, port, models: wanted, services: served }, ignored };
}

function readFile(path: string): TextMessage {
  if (!fileExists(path)) {
    throw new CubeError('NOT_FOUND', `${path}: no such file; gflags.conf names others if need be`);
  }
  return parseTextFormat(readText(path, FILE_BYTES_MAX), path);
}

/** @returns undefined for a service that only echoes: there is nothing to predict */
function readService(
  node: TextMessage,
  workflows: ReadonlyMap<string, Workflow>,
  { ignored, engines, aliases }: Reading,
): ServiceConfig | undefined {
  const name = node.string('name') ?? node.fail('a service without name');
  if (node.boolean('enable_map_request_to_workflow')) {
    node.fail(
      `service ${name}: enable_map_request_to_workflow is not supported; give each its own service`,
    );
  }
  for (const field of node.names.filter((one) => !SERVICE_FIELDS.includes(one))) {
    if (field === 'enable_map_request_to_workflow') continue;
    const why = SERVICE_IGNORED[field] ?? 'unknown here';
    ignored.push({ setting: `${node.placeOfField(field)} ${field}`, why });
  }
  const [workflowName, ...others] = node.strings('workflows');
  if (workflowName === undefined) node.fail(`service ${name} has no workflows`);
  if (others.length > 0) node.fail(`service ${name}: one workflow a service; give each its own`);
  const known = [...workflows.keys()].join(', ');
  const workflow =
    workflows.get(workflowName) ??
    node.fail(`service ${name}: there is no workflow ${workflowName} (there are: ${known})`);
  if (workflow.echoes) {
    const why = 'its workflow only echoes: /healthz says whether the process lives';
    ignored.push({ setting: `${node.place} service ${name}`, why });
    return undefined;
  }
  const engine = engineOf(workflow, engines);
  return { name, model: engine, ...(aliases.size > 0 && { aliases }) };
}
