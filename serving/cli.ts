/**
 * The command line of serving: merges settings from flags, environment and files, and runs the
 * process until it is stopped.
 */
import { CubeError } from '../lib/core/errors.ts';
import { advanced, type Command, createCli, Option, runCli } from '../lib/platform/cli.ts';
import { letHeapGrow } from '../lib/platform/heap-growth.ts';
import { runService, type Stoppable } from '../lib/platform/lifecycle.ts';
import { createLogger, type Logger } from '../lib/platform/logs.ts';
import { startTracing } from '../lib/platform/start-tracing.ts';
import {
  findChildNumber,
  reportListening,
  waitForParentStop,
} from '../lib/platform/supervised-process.ts';
import {
  formatConfigReport,
  type IgnoredSetting,
  listIgnoredCubeFields,
} from './config/config-report.ts';
import { readLocalServices } from './config/local-services-config.ts';
import type { WorkflowServices } from './config/paddle-conf.ts';
import {
  checkPipelineConfig,
  formatPipelineReport,
  type PipelineConfig,
  readPipelineConfig,
} from './config/pipeline-config.ts';
import type { ServerFields } from './config/pipeline-fields.ts';
import { readClientVariables, readPipelineModels } from './config/pipeline-models.ts';
import type { ProtoServices } from './config/proto-file.ts';
import {
  completeConfig,
  type ServingConfig,
  type ServingSettings,
} from './config/serving-config.ts';
import { MESSAGE_BYTES_MAX } from './config/settings.ts';
import { readSettingsFile } from './config/settings-file.ts';
import { addSettingOptions, mergeSettings, type SettingFlags } from './config/settings-flags.ts';
import type { TritonModelConfig } from './config/triton-model-config.ts';
import { listMissingProviders } from './engine/choose-placements.ts';
import type { PipelineDefinition } from './pipeline-service.ts';
import type { GraphFiles } from './served-graphs.ts';
import type { WorkerProcesses } from './worker-processes.ts';
import type { WorkflowsDefinition } from './workflow-service.ts';

interface Flags extends SettingFlags {
  readonly config?: string;
  readonly confDir?: string;
  readonly flagfile?: string;
  readonly pipeline?: string;
  readonly proto?: readonly string[];
  readonly ops?: string;
  readonly checkConfig?: boolean;
}

const EXAMPLES = `
Examples:
  serving --repository repo --bundle ctr-dnn
  serving --repository repo --bundle ctr-dnn --store remote --fleet fleet.json --port 8080
  serving --repository repo --bundle ctr-dnn --channel stable,canary --data-dir serving-data
  serving --bundle-dir exported/ctr-dnn --bundle ctr-dnn
  serving --model encoder.onnx
  serving --model-repository models --model-control-mode poll
  serving --config serving.yaml --check-config
  serving --conf-dir conf --check-config
  serving --flagfile conf/gflags.conf
  serving --pipeline service.ts --config config.yml
  serving --pipeline echo.ts --config config.yml --proto echo.proto
  serving load-redis --help            load the rows of a version into Redis before it is served

A prediction:
  head -3 data/demo/rows.tsv | curl -s -H 'content-type: text/tab-separated-values' \\
    --data-binary @- localhost:8080/v1/ctr:predict
In this path, ctr is the protocol. With several models, name one: ctr:predict?model=ctr-dnn`;

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

export function createProgram(): Command {
  const program = createCli(
    'serving',
    'Serves predictions. A bundle is a named model, and each publication of it is a version. A ' +
      'channel such as stable points to the version to serve; serving follows it.',
  )
    .optionsGroup('Configuration:')
    .option(
      '--config <file>',
      'YAML file with the settings of the process and of one or several models',
    )
    .option(
      '--conf-dir <folder>',
      "Paddle Serving's conf folder (service.prototxt, gflags.conf, …), instead of --config; " +
        'paths in its files start from the folder above',
    )
    .option(
      '--flagfile <file>',
      "Paddle Serving's flag file, instead of --conf-dir; paths in it start from the current " +
        'folder',
    )
    .option(
      '--pipeline <file>',
      'JavaScript or TypeScript file whose default export is a pipeline; --config then names its ' +
        'config.yml',
    )
    .option(
      '--proto <file...>',
      '.proto files of the services that --pipeline or the workflows of --conf-dir answer with ' +
        'messages of their own, over gRPC, baidu_std and HTTP',
    )
    .option(
      '--ops <file>',
      'JavaScript or TypeScript file that exports the operators which the workflows of ' +
        '--conf-dir name and which are not built in',
    )
    .addOption(
      advanced(
        new Option('--g [true|false]', "Paddle Serving's flag beside --flagfile; it has no effect"),
      ),
    )
    .option(
      '--check-config',
      'Print the effective settings, and the ignored ones with reasons, then exit without using ' +
        'the network; exit code 2: a setting is invalid',
    );
  return addSettingOptions(program)
    .addHelpText('after', EXAMPLES)
    .action((flags: Flags) => runServing(flags, program));
}

async function runServing(flags: Flags, program: Command): Promise<void> {
  const { config, ignored, pipeline: files, workflows: graphs } = await readConfig(flags, program);
  if (flags.checkConfig === true) {
    const missing = await checkProviders(config, program);
    process.stdout.write(formatConfigReport(config, [...ignored, ...missing]));
    if (files !== undefined) reportPipeline(files.config, program);
    return;
  }
  const { logLevel: level, logFormat: format, logFile: file } = config;
  const worker = findChildNumber();
  // The log of a worker becomes that of the process that started it.
  const output = worker === undefined ? { format, file } : { format: 'json' as const };
  const logger = createLogger('serving', { level, ...output });
  if (worker === undefined) {
    for (const one of ignored) logger.warn({ ...one }, 'setting is ignored');
  }
  let reload: (() => Promise<void>) | undefined;
  process.on('SIGHUP', () => {
    // A terminal sends it to workers, too.
    if (worker !== undefined) return;
    // Channels, folders and token files are already polled.
    if (reload === undefined) logger.info('SIGHUP ignored: changes are detected without it');
    // The failure is logged where it happens.
    else reload().catch(() => undefined);
  });
  const stopRequest = waitForParentStop();
  const start = async (): Promise<Stoppable> => {
    const { build_dag_each_worker: hasWorkers = false, worker_num: count = 1 } =
      files?.config.server ?? {};
    if (hasWorkers && worker === undefined) {
      const workers = await startWorkers(config, { count, services: files?.services }, logger);
      reload = () => workers.reload();
      return workers;
    }
    // Help and --check-config need none of the server's packages.
    const { startServing } = await import('./server.ts');
    letHeapGrow();
    const first = await loadGraphs({ config, ignored, pipeline: files, workflows: graphs }, worker);
    const readAgain = async (): Promise<GraphFiles> =>
      loadGraphs(await parseConfig(flags), worker, true);
    const hasGraphs =
      files !== undefined || flags.confDir !== undefined || flags.flagfile !== undefined;
    const tracing = await startTracing('serving', logger);
    const serving = await startServing({ ...first, logger, ...(hasGraphs && { readAgain }) });
    if (hasGraphs) reload = () => serving.reload();
    reportListening(serving.address);
    return {
      async stop() {
        await serving.stop();
        await tracing?.stop();
      },
    };
  };
  await runService(start, logger, stopRequest === undefined ? {} : { stopRequest });
}

/** Starts the processes of `build_dag_each_worker`, which run this program with the same flags. */
async function startWorkers(
  { host, port, secondPort }: ServingConfig,
  { count, services = [] }: { count: number; services?: PipelineDefinition['services'] },
  logger: Logger,
): Promise<WorkerProcesses> {
  const { WorkerProcesses } = await import('./worker-processes.ts');
  const ports = secondPort === undefined ? [port] : [port, secondPort];
  const args = process.argv.slice(1);
  const workers = new WorkerProcesses({ count, services, host, ports, args, logger });
  await workers.start();
  const { addresses } = workers;
  const [address = ''] = addresses;
  logger.info({ address, ...(addresses.length > 1 && { addresses }), workers: count }, 'listening');
  reportListening(address);
  return workers;
}

/** A pipeline whose configuration is read, but not its file. */
interface PipelineFiles extends Omit<PipelineDefinition, 'module'> {
  readonly file: string;
}

interface ParsedConfig {
  readonly config: ServingConfig;
  readonly ignored: readonly IgnoredSetting[];
  readonly pipeline?: PipelineFiles | undefined;
  readonly workflows?: WorkflowFiles | undefined;
}

/** The services of a conf folder, before the module of their operators is loaded. */
interface WorkflowFiles extends Omit<WorkflowsDefinition, 'operators'> {
  readonly operatorFile: string | undefined;
}

/** Prints every field of config.yml, also when one is refused. */
function reportPipeline(config: PipelineConfig, program: Command): void {
  process.stdout.write(formatPipelineReport(config));
  try {
    checkPipelineConfig(config);
  } catch (error) {
    program.error(`error: ${CubeError.from(error).message}`);
  }
}

/**
 * Loads the modules of a configuration.
 * @param worker number of this process, where several share the ports
 * @param isReload the modules were loaded before, and may have changed
 */
async function loadGraphs(
  { config, pipeline, workflows }: ParsedConfig,
  worker: number | undefined,
  isReload = false,
): Promise<GraphFiles> {
  if (pipeline !== undefined) {
    const { file, ...others } = pipeline;
    const { loadPipelineModule } = await import('./pipeline/module.ts');
    const module = await loadPipelineModule(file, { isReload });
    return { config, pipeline: { ...others, module, ...(worker !== undefined && { worker }) } };
  }
  if (workflows === undefined) return { config };
  const { operatorFile, ...others } = workflows;
  const { loadOperators } = await import('./pipeline/module.ts');
  const operators =
    operatorFile === undefined ? new Map() : await loadOperators(operatorFile, { isReload });
  return { config, workflows: { ...others, operators } };
}

/** @throws CubeError INVALID_ARGUMENT for flags that need others */
function checkServiceFlags({ proto, ops, confDir, flagfile }: Flags): void {
  const hasConf = confDir !== undefined || flagfile !== undefined;
  if (proto !== undefined && !hasConf) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      '--proto needs --pipeline or --conf-dir, which answer its services',
    );
  }
  if (ops !== undefined && proto === undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      '--ops needs --conf-dir, whose nodes name them, and --proto, the messages of its services',
    );
  }
}

/** Reports an invalid configuration as a usage error, wherever it was written. */
async function readConfig(flags: Flags, program: Command): Promise<ParsedConfig> {
  try {
    return await parseConfig(flags);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    if (code !== 'INVALID_ARGUMENT') throw error;
    return program.error(`error: ${message}`);
  }
}

/** @throws CubeError INVALID_ARGUMENT, NOT_FOUND naming the setting or the file */
async function parseConfig(flags: Flags): Promise<ParsedConfig> {
  if (flags.pipeline !== undefined) return readPipeline(flags, flags.pipeline);
  checkServiceFlags(flags);
  const { settings, ignored, workflowServices } = await readFiles(flags);
  const config = completeConfig(mergeSettings(settings, flags));
  const { models, modelRepository } = config;
  const known = [...ignored, ...listIgnoredCubeFields(models)];
  const messages = flags.proto && (await readProto(flags.proto));
  const workflows = workflowServices &&
    messages && { ...workflowServices, messages, operatorFile: flags.ops };
  if (flags.checkConfig !== true || modelRepository === undefined) {
    return { config, ignored: known, ...(workflows && { workflows }) };
  }
  const fields: IgnoredSetting[] = [];
  await readRepositoryConfigs(modelRepository.folder, fields);
  return { config, ignored: [...known, ...fields] };
}

/** @param ignored gets the fields that have no effect */
async function readRepositoryConfigs(
  folder: string,
  ignored: IgnoredSetting[],
): Promise<TritonModelConfig[]> {
  // Few processes have a model repository: its files are not part of every start.
  const { readModelConfigs } = await import('./config/triton-repository.ts');
  return readModelConfigs(folder, ignored);
}

/** @returns execution providers that are missing here, and that the CPU replaces */
async function checkProviders(
  { models, modelRepository }: ServingConfig,
  program: Command,
): Promise<IgnoredSetting[]> {
  const inRepository =
    modelRepository === undefined ? [] : await readRepositoryConfigs(modelRepository.folder, []);
  const placed = [
    ...models.map(({ name, placements }) => ({ source: `model ${name}`, placements })),
    ...inRepository.map(({ source, instances }) => ({ source, placements: instances ?? [] })),
  ];
  try {
    const missing: IgnoredSetting[] = [];
    for (const one of placed) missing.push(...(await listMissingProviders(one)));
    return missing;
  } catch (error) {
    return program.error(`error: ${CubeError.from(error).message}`);
  }
}

async function readFiles({ config, confDir, flagfile, proto }: Flags): Promise<{
  settings?: ServingSettings;
  workflowServices?: WorkflowServices;
  ignored: readonly IgnoredSetting[];
}> {
  if ([config, confDir, flagfile].filter((given) => given !== undefined).length > 1) {
    throw new CubeError('INVALID_ARGUMENT', 'give one of --config, --conf-dir and --flagfile');
  }
  if (confDir === undefined && flagfile === undefined) {
    return { ignored: [], ...(config !== undefined && { settings: readSettingsFile(config) }) };
  }
  // Few processes read Paddle's files: their readers are not part of every start.
  const conf = await import('./config/paddle-conf.ts');
  const location =
    confDir === undefined ? conf.locateFlagFile(flagfile ?? '') : conf.locateConfFolder(confDir);
  return conf.readPaddleConf(location, proto !== undefined);
}

/** The settings of a pipeline's process: those of config.yml, overridden by flags. */
async function readPipeline(flags: Flags, file: string): Promise<ParsedConfig> {
  const { config: path } = flags;
  if (path === undefined) {
    throw new CubeError('INVALID_ARGUMENT', '--pipeline needs --config, the config.yml');
  }
  if (flags.confDir !== undefined || flags.flagfile !== undefined) {
    throw new CubeError('INVALID_ARGUMENT', '--pipeline excludes --conf-dir and --flagfile');
  }
  const pipeline = readPipelineConfig(path);
  if (flags.checkConfig !== true) checkPipelineConfig(pipeline);
  const given = mergeSettings(undefined, flags);
  const names = given.models.flatMap(({ name, bundle }) => name ?? bundle ?? []);
  const { models, modelOfOp } = readPipelineModels(pipeline, path, names);
  const [port, secondPort] = listPorts(pipeline.server);
  const config = completeConfig({
    messageBytes: MESSAGE_BYTES_MAX,
    ...(port !== undefined && { port }),
    ...(secondPort !== undefined && flags.port === undefined && { secondPort }),
    ...given,
    hasPipeline: true,
    models: [...given.models, ...models],
  });
  const ignored = listIgnoredCubeFields(config.models);
  const variables = readClientVariables(pipeline, path);
  const services = readLocalServices(pipeline, path);
  const messages = flags.proto && (await readProto(flags.proto));
  const parts = {
    file,
    config: pipeline,
    modelOfOp,
    variables,
    services,
    ...(messages && { messages }),
  };
  return { config, ignored, pipeline: parts };
}

/** Other processes do not load the package that reads these files. */
async function readProto(files: readonly string[]): Promise<ProtoServices> {
  const { readProtoFiles } = await import('./config/proto-file.ts');
  return readProtoFiles(files);
}

/** One port where both are equal, except 0, which chooses two free ones. */
function listPorts({ rpc_port: rpc, http_port: http }: ServerFields): readonly number[] {
  const ports = [rpc, http].filter((port) => port !== undefined);
  return rpc === http && rpc !== 0 ? ports.slice(0, 1) : ports;
}
