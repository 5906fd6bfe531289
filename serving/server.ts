/**
 * Assembles a serving process: configuration, models (versions, stores, model workers, predictors),
 * and protocols on one port. Starting never waits for a version: the process listens at once, and
 * becomes ready when every model serves a version.
 */

import { openProcessAccess, type ProcessAccess, warnIfOpen } from '../lib/access/process-access.ts';
import { ConsoleFeed } from '../lib/console/console-feed.ts';
import { systemClock } from '../lib/platform/clock.ts';
import { useDecryptKeys } from '../lib/platform/encryption-options.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { ControlAccess } from '../lib/rpc/control-access.ts';
import type { OnePortServer, OnePortServerOptions } from '../lib/rpc/one-port-server.ts';
import { TlsIdentity } from '../lib/rpc/tls-identity.ts';
import type { ServingConfig } from './config/serving-config.ts';
import { readTrafficFile } from './config/traffic-file.ts';
import { LocalServices } from './local-services.ts';
import { type ServingConsoleOptions, ServingConsoleSource } from './metrics/console-source.ts';
import { ExposureLog } from './metrics/exposure-log.ts';
import { RequestLog } from './metrics/request-log.ts';
import { ServingMetrics } from './metrics/serving-metrics.ts';
import { ExperimentLogs } from './models/experiment-logs.ts';
import { Experiments } from './models/experiments.ts';
import { openModels } from './models/open-models.ts';
import { recordRows } from './models/recorded-rows.ts';
import { recordTensors } from './models/recorded-tensors.ts';
import { Shadows } from './models/shadows.ts';
import { type Traffic, TrafficFile } from './models/traffic.ts';
import type { PipelineDescription, PipelineHistory } from './pipeline/pipeline-history.ts';
import type { StartedPipeline } from './pipeline-service.ts';
import { Admission } from './protocols/admission.ts';
import { registerServingConsole } from './protocols/console.ts';
import { registerCtr } from './protocols/ctr.ts';
import { getClickProbabilities } from './protocols/ctr-response.ts';
import {
  createEndpoints,
  createServer,
  describeExperiments,
  type Endpoints,
  findNotReadyReason,
  registerStatusRoutes,
} from './protocols/endpoints.ts';
import type { ProtocolContext } from './protocols/handle-prediction.ts';
import { registerKserveGrpc } from './protocols/kserve-grpc.ts';
import { registerKserveRest } from './protocols/kserve-rest.ts';
import { registerModelFeatures } from './protocols/model-features.ts';
import { registerOpenApi } from './protocols/operations.ts';
import { registerPaddle } from './protocols/paddle.ts';
import { registerPipeline } from './protocols/pipeline.ts';
import { registerReload } from './protocols/reload.ts';
import { createServingLimits } from './protocols/request-limits.ts';
import { findRouteAccess } from './protocols/route-access.ts';
import { SliceQueue } from './protocols/slice-queue.ts';
import { registerTfs } from './protocols/tfs.ts';
import { registerTritonRest } from './protocols/triton-rest.ts';
import {
  type GraphFiles,
  type GraphSet,
  registerReloadMetrics,
  ServedGraphs,
} from './served-graphs.ts';
import { WorkerProcess } from './worker-process.ts';

export interface ServingOptions extends GraphFiles {
  readonly logger: Logger;
  /** Reads the files of pipelines, workflows and services again, for a reload. */
  readonly readAgain?: (() => Promise<GraphFiles>) | undefined;
}

export interface Serving extends Stoppable {
  /** The first bound host:port. */
  readonly address: string;
  /** All of them. */
  readonly addresses: readonly string[];
  /**
   * Replaces pipelines, workflows and services by those of the changed files.
   * @throws CubeError why the previous ones stay active
   */
  reload(): Promise<void>;
}

/** @throws CubeError when a repository or a store cannot be opened, or the port is taken */
export async function startServing({
  logger,
  readAgain,
  ...files
}: ServingOptions): Promise<Serving> {
  const { config, pipeline: definition } = files;
  useDecryptKeys(config);
  const access = openAccess(config, logger);
  const admission = new Admission(config.inFlightMax);
  const metrics = new ServingMetrics();
  const opened = openContext(files, { admission, metrics, access, logger });
  const { models, context, history } = await opened.catch((error: unknown) => {
    access.close();
    throw error;
  });
  let graphs: ServedGraphs | undefined;
  const describePipeline = history && (() => describeGraphs(graphs, worker ?? history));
  const feed = createConsoleFeed(context, describePipeline);
  let port: OnePortServer | undefined;
  const addresses: string[] = [];
  let isStopped = false;
  let worker: WorkerProcess | undefined;
  // The files of all worker processes change together, so the one that started them decides.
  const reload = async (): Promise<void> => (worker === undefined ? graphs : worker)?.reload();
  const stop = async (): Promise<void> => {
    isStopped = true;
    worker?.leave();
    await admission.close();
    feed.close();
    if (addresses.length > 0 || worker !== undefined) await port?.stop();
    await graphs?.stop();
    await context.exposures?.close();
    await context.experimentLogs.stop();
    context.shadows.close();
    await models.stop();
    access.close();
  };
  try {
    graphs = await openGraphs(files, { context, readAgain, history });
    port = createProtocolServer(context, config, feed, {
      tls: config.tls && new TlsIdentity(config.tls, logger),
      gate: access.gate.isRestrictive ? access.gate : undefined,
      graphs,
      reload: () => reload(),
    });
    if (definition?.worker === undefined) addresses.push(...(await listen(port, config)));
    else if (history !== undefined) worker = await startWorker(port, context, graphs, history);
  } catch (error) {
    await stop();
    throw error;
  }
  warnIfOpen(config.host, access, logger);
  logAddresses(config, addresses, graphs.current.graph?.name, logger);
  // With the experiments, so that the first requests are assigned too.
  void context.experimentLogs.start().then(() => {
    if (!isStopped) models.registry.start();
  });
  return { address: addresses[0] ?? '', addresses, reload, stop };
}

type ContextOptions = Omit<ContextParts, 'models' | 'metrics'> & {
  readonly metrics: ServingMetrics;
};

interface OpenContext {
  readonly models: ContextParts['models'];
  readonly context: ProtocolContext;
  /** Present where there is a pipeline. */
  readonly history: PipelineHistory | undefined;
}

/** Opens models and what requests share; closes everything again when that fails. */
async function openContext(
  { config, pipeline, workflows }: GraphFiles,
  options: ContextOptions,
): Promise<OpenContext> {
  const { admission, metrics, logger } = options;
  const models = await openModels({
    models: config.models,
    modelRepository: config.modelRepository,
    trustedKeysPath: config.trustedKeysPath,
    events: metrics,
    logger,
  });
  try {
    metrics.observe(admission, models.registry);
    metrics.addNames(config.metricNames, models.registry);
    metrics.observeRecording(models.recorders);
    const context = createContext(config, { ...options, models });
    const hasPipeline = pipeline !== undefined || workflows !== undefined;
    return { models, context, history: hasPipeline ? await createHistory(context) : undefined };
  } catch (error) {
    // Stores have connections and timers, which would keep the process alive.
    await models.stop();
    throw error;
  }
}

function openAccess({ access: config }: ServingConfig, logger: Logger): ProcessAccess {
  const options = { config, findRequirement: findRouteAccess, logger };
  return openProcessAccess({ processName: 'serving', ...options });
}

interface GraphParts extends Pick<ServingOptions, 'readAgain'> {
  readonly context: ProtocolContext;
  readonly history: PipelineHistory | undefined;
}

/** Starts pipelines, workflows and services, with the metrics of their reloads. */
async function openGraphs(
  files: GraphFiles,
  { context, readAgain: read, history }: GraphParts,
): Promise<ServedGraphs> {
  const { logger, metrics } = context;
  const services = new LocalServices(logger);
  const start = (given: GraphFiles) => startGraphs(given, context, services);
  const graphs = await ServedGraphs.start(files, { start, read, history, logger });
  if (graphs.canReload) metrics.extend((registry) => registerReloadMetrics(registry, graphs));
  return graphs;
}

function logAddresses(
  { models }: ServingConfig,
  addresses: readonly string[],
  pipeline: string | undefined,
  logger: Logger,
): void {
  const served = models.map(({ name, store }) => ({ model: name, store: store.kind }));
  const also = { ...(pipeline !== undefined && { pipeline }) };
  const parts = { ...also, models: served };
  // The process that started a worker says where it listens.
  if (addresses.length === 0) logger.info(parts, 'worker process started');
  else logger.info({ ...formatAddresses(addresses), ...parts }, 'listening');
}

/** Starts the pipeline, or the workflows, of the process. @returns undefined when it has none */
async function startGraphs(
  { pipeline, workflows }: GraphFiles,
  context: ProtocolContext,
  services: LocalServices,
): Promise<StartedPipeline | undefined> {
  // Their clients load gRPC, which other processes do not need at their start.
  if (pipeline !== undefined) {
    const { startPipeline } = await import('./pipeline-service.ts');
    return startPipeline(pipeline, context, services);
  }
  if (workflows === undefined) return undefined;
  const { startWorkflows } = await import('./workflow-service.ts');
  return startWorkflows(workflows, context);
}

/** The figures of all generations of the pipeline, as metrics. */
async function createHistory({ metrics }: ProtocolContext): Promise<PipelineHistory> {
  const { PipelineHistory } = await import('./pipeline/pipeline-history.ts');
  const { registerPipelineMetrics } = await import('./pipeline/pipeline-metrics.ts');
  const history = new PipelineHistory();
  metrics.extend((registry) => registerPipelineMetrics(registry, history));
  return history;
}

/** @param figures of this process, or of all worker processes */
async function describeGraphs(
  graphs: ServedGraphs | undefined,
  figures: { describe(): PipelineDescription | Promise<PipelineDescription> },
): Promise<object | undefined> {
  if (graphs === undefined) return undefined;
  const { current, status } = graphs;
  return { name: current.graph?.name, ...(await figures.describe()), reload: status };
}

function formatAddresses(addresses: readonly string[]): object {
  const [address = ''] = addresses;
  return { address, ...(addresses.length > 1 && { addresses }) };
}

async function listen(
  port: OnePortServer,
  { host, port: first, secondPort }: ServingConfig,
): Promise<string[]> {
  const addresses: string[] = [];
  const ports = secondPort === undefined ? [first] : [first, secondPort];
  for (const one of ports) addresses.push(await port.listen(host, one));
  return addresses;
}

/** Accepts the connections of the process that listens. */
async function startWorker(
  port: OnePortServer,
  context: ProtocolContext,
  graphs: ServedGraphs,
  history: PipelineHistory,
): Promise<WorkerProcess> {
  const isReady = (): boolean => findNotReadyReason(context) === undefined;
  const worker = new WorkerProcess({ port, metrics: context.metrics, isReady, graphs, history });
  await worker.start();
  return worker;
}

interface ContextParts extends Pick<ProtocolContext, 'admission' | 'metrics' | 'logger'> {
  readonly models: Awaited<ReturnType<typeof openModels>>;
  readonly access: ProcessAccess;
}

function createContext(
  config: ServingConfig,
  { models, admission, metrics, access, logger }: ContextParts,
): ProtocolContext {
  return {
    models: models.registry,
    ...openTraffic(config, { models, metrics, logger }),
    exposures: config.exposures && new ExposureLog({ ...config.exposures, logger }),
    predictor: models.predictor,
    admission,
    metrics,
    requestLog: new RequestLog(logger, config.requestLog),
    slices: new SliceQueue(systemClock),
    logger,
    timeoutMs: config.timeoutMs,
    clock: systemClock,
    access: createControlAccess(config, access, logger),
    onPrediction: (request, arrivedMs) => {
      const { recorders } = models;
      if ('bundle' in request) {
        const { bundle, rows } = request;
        recorders.record(bundle, arrivedMs, () => recordRows(rows, bundle.features));
      } else {
        const { graph, call } = request;
        recorders.record(graph, arrivedMs, () => recordTensors(call.inputs, graph));
      }
    },
  };
}

/** Experiments and shadows of files and of the repository's experiment logs. */
function openTraffic(
  { trafficFile: path, traffic: fixed }: ServingConfig,
  { models, metrics, logger }: Pick<ContextParts, 'models' | 'metrics' | 'logger'>,
): Pick<ProtocolContext, 'experiments' | 'shadows' | 'experimentLogs'> {
  const { registry, predictor } = models;
  const clock = systemClock;
  const check = (changed: Traffic): void => logs?.requireCompatible(changed);
  let logs: ExperimentLogs | undefined;
  const file =
    path === undefined ? undefined : { path, read: readTrafficFile, check, clock, logger };
  const files = new TrafficFile(file, fixed);
  const traffic = new ExperimentLogs({ logs: models.experimentLogs, files, clock, logger });
  logs = traffic;
  traffic.requireCompatible(files.current());
  const experiments = new Experiments({
    models: registry,
    traffic,
    logger,
    onMissingTarget: (assignment) => metrics.experiments.recordMissing(assignment),
  });
  const shadows = new Shadows({
    traffic,
    models: registry,
    predictor,
    clock,
    toScores: (prediction, { plan }) => getClickProbabilities(prediction, plan),
    onResult: (result) => metrics.shadows.record(result),
  });
  return { experiments, shadows, experimentLogs: traffic };
}

function createControlAccess(
  { controlTokenFile: tokenFile, tls }: ServingConfig,
  { gate, audit }: ProcessAccess,
  logger: Logger,
): ControlAccess {
  return new ControlAccess({
    tokenFile,
    acceptCertificates: tls?.ca !== undefined,
    gate,
    audit,
    logger,
    authFlags: '--control-token-file or --key-file',
  });
}

/** Requests make the feed sample, so that an idle process does nothing for the console. */
function createConsoleFeed(
  context: ProtocolContext,
  describePipeline: ServingConsoleOptions['describePipeline'],
): ConsoleFeed {
  const { models, metrics, admission } = context;
  const source = new ServingConsoleSource({
    models,
    metrics,
    admission,
    listExperiments: () => describeExperiments(context),
    findNotReadyReason: () => findNotReadyReason(context),
    describePipeline,
  });
  const feed = new ConsoleFeed(source);
  metrics.onRequest = () => feed.touch();
  return feed;
}

interface ServerParts extends Pick<OnePortServerOptions, 'tls' | 'gate'> {
  readonly graphs: ServedGraphs;
  readonly reload: () => Promise<void>;
}

/** Registers every protocol on one port, which does not listen yet. */
function createProtocolServer(
  context: ProtocolContext,
  { protocols, messageBytes, tlsOnly, corsOrigins }: ServingConfig,
  feed: ConsoleFeed,
  { tls, gate, graphs, reload }: ServerParts,
): OnePortServer {
  const limits = createServingLimits(messageBytes);
  const { definitions } = graphs.current.graph ?? {};
  const endpoints = createEndpoints(context, limits, { gate, corsOrigins }, definitions);
  registerProtocols(endpoints, context, { graphs, feed, reload });
  const { logger } = context;
  return createServer(endpoints, protocols, { limits, logger, tls, tlsOnly, gate });
}

/** What is served besides models under their own names. */
interface ServedParts {
  readonly graphs: Pick<ServedGraphs, 'services' | 'acquire' | 'canReload' | 'status'> & {
    readonly current: Pick<GraphSet, 'service' | 'messages'>;
  };
  readonly feed: ConsoleFeed;
  readonly reload: () => Promise<void>;
}

/** Registers the routes of every protocol, and their description. */
export function registerProtocols(
  endpoints: Endpoints,
  context: ProtocolContext,
  { graphs, feed, reload }: ServedParts,
): void {
  registerServingConsole(endpoints, context.models, feed);
  registerStatusRoutes(endpoints, context, graphs.canReload ? () => graphs.status : undefined);
  registerKserveRest(endpoints, context);
  registerTritonRest(endpoints, context);
  registerKserveGrpc(endpoints, context);
  registerTfs(endpoints, context);
  registerModelFeatures(endpoints, context.models);
  registerPaddle(endpoints, context, graphs);
  registerCtr(endpoints, context);
  const { service, messages } = graphs.current;
  const own = messages?.services ?? [];
  for (const one of own) messages?.register(endpoints, context, one, graphs);
  if (service !== undefined) registerPipeline(endpoints, context, graphs, service.name);
  if (graphs.canReload) registerReload(endpoints, context, reload);
  registerOpenApi(endpoints, {
    services: graphs.services.map(({ name }) => name),
    hasPipeline: service !== undefined,
    messages: own,
    canReload: graphs.canReload,
  });
}
