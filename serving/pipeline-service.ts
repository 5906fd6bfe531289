/** Assembles the pipeline of a serving process: its ops, its config.yml and the clients of ops. */
import { join, resolve } from 'node:path';
import { CubeError } from '../lib/core/errors.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { LocalServiceConfig } from './config/local-services-config.ts';
import type { PipelineConfig, PipelineOpConfig } from './config/pipeline-config.ts';
import type { ClientVariables } from './config/pipeline-models.ts';
import type { ProtoServices } from './config/proto-file.ts';
import type { LocalServices } from './local-services.ts';
import { LocalPredictor } from './pipeline/local-predictor.ts';
import type { NamedPipeline } from './pipeline/module.ts';
import type { OpClient, OpSettings } from './pipeline/op.ts';
import type { PipelineSource } from './pipeline/pipeline-metrics.ts';
import { RemoteClient, type RemoteClientOptions } from './pipeline/remote-client.ts';
import { PipelineServer } from './pipeline/server.ts';
import type { PipelineSettings } from './pipeline/settings.ts';
import { VariableNames } from './pipeline/variable-names.ts';
import type { ProtocolContext } from './protocols/handle-prediction.ts';
import { readLocalRows } from './protocols/local-rows.ts';
import { registerMessages, type ServedMessages } from './protocols/messages.ts';
import type { PipelineService } from './protocols/pipeline.ts';

export interface PipelineDefinition {
  readonly config: PipelineConfig;
  readonly module: NamedPipeline;
  /** Op → the model of this process that it predicts with. */
  readonly modelOfOp: ReadonlyMap<string, string>;
  /** Op → names of the variables of its remote model, from `client_config`. */
  readonly variables: ReadonlyMap<string, ClientVariables>;
  /** Services with messages of their own, instead of Pipeline Serving's. */
  readonly messages?: ProtoServices;
  /** Services that run as processes of their own while the pipeline does. */
  readonly services?: readonly LocalServiceConfig[];
  /** Where the tracer and the trace are written. Default: PipelineServingLogs, as the original. */
  readonly logFolder?: string;
  /** The number of this process, where several share the ports. */
  readonly worker?: number;
}

/** The folder of the original. */
const LOG_FOLDER = 'PipelineServingLogs';

/** Makes the client of an op that has one by its configuration. */
type OpClientFactory = (op: string, config: PipelineOpConfig) => OpClient | undefined;

/** A pipeline that is ready for requests. */
export interface StartedPipeline {
  readonly name: string;
  /** Undefined: it is served with messages of its own. */
  readonly service: PipelineService | undefined;
  /** Undefined: it is served with the messages of Pipeline Serving. */
  readonly messages: ServedMessages | undefined;
  /** Definitions of the messages, for gRPC reflection. */
  readonly definitions?: object | undefined;
  /** Counts since its start, for metrics and the console. */
  readonly figures: PipelineSource;
  /** Answers the running requests first. */
  stop(): Promise<void>;
}

/**
 * Runs the `initOp` of every op. Local models may load later; requests fail until then.
 * @throws CubeError INVALID_ARGUMENT naming the op, the edge or the setting; what `initOp` throws
 */
export async function startPipeline(
  definition: PipelineDefinition,
  context: ProtocolContext,
  localServices: LocalServices,
): Promise<StartedPipeline> {
  const { config, module, services = [] } = definition;
  const createClient: OpClientFactory = (name, op) => createOpClient(name, op, definition, context);
  const settings = {
    ...toPipelineSettings(config, createClient, context.logger),
    ...toLogSettings(definition),
    ...(config.dag.is_thread_op === false && toThreadSettings(module)),
  };
  const server = new PipelineServer(module.ops, settings);
  // Those of several workers belong to the process that started them.
  const own = definition.worker === undefined ? services : [];
  const release = await localServices.use(own);
  try {
    await server.start();
  } catch (error) {
    await release();
    throw error;
  }
  const { name, layout, packTensors } = module;
  const service = {
    name,
    engine: server,
    ...(layout !== undefined && { layout }),
    ...(packTensors !== undefined && { packTensors }),
  };
  const { messages } = definition;
  return {
    name,
    service: messages === undefined ? service : undefined,
    messages: messages && {
      services: messages.services,
      findRunner: () => server,
      register: registerMessages,
    },
    definitions: messages?.definitions,
    figures: server,
    stop: async () => {
      await server.stop();
      await release();
    },
  };
}

function toPipelineSettings(
  config: PipelineConfig,
  createClient: OpClientFactory,
  logger: Logger,
): PipelineSettings {
  const { dag, ops } = config;
  const { retry, channel_recv_frist_arrive: firstArrival } = dag;
  const channelSize = findChannelSize(config);
  return {
    ...(retry !== undefined && { retry }),
    ...(channelSize !== undefined && { channelSize }),
    ...(firstArrival !== undefined && { firstArrival }),
    ops: Object.fromEntries(
      [...ops].map(([name, op]) => [name, toOpSettings(op, createClient(name, op))]),
    ),
    logger,
  };
}

/**
 * In the original, `worker_num` limits the requests in progress, and with them the queues. Here it
 * limits the queues, which have room for the executions of every op.
 */
function findChannelSize({ dag, server, ops }: PipelineConfig): number | undefined {
  const { channel_size: channelSize = 0 } = dag;
  const { worker_num: workerNum, build_dag_each_worker: hasProcesses = false } = server;
  if (channelSize > 0) return channelSize;
  if (workerNum === undefined || hasProcesses) return undefined;
  const needs = [...ops.values()].map(({ concurrency = 1, batch_size: batchSize = 1 }) => {
    return concurrency * batchSize;
  });
  return Math.max(workerNum, ...needs);
}

/** @throws CubeError INVALID_ARGUMENT for a pipeline that other threads cannot load */
function toThreadSettings({ name, file, snapshot }: NamedPipeline): PipelineSettings {
  if (file !== undefined) {
    return { threadFile: file, ...(snapshot !== undefined && { threadSnapshot: snapshot }) };
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    `is_thread_op: false: the pipeline ${name} has no file that worker threads can load; set true`,
  );
}

/** Only the tracer and the trace have files: what is logged goes to the log of the process. */
function toLogSettings({ config, logFolder, worker }: PipelineDefinition): PipelineSettings {
  const { use_profile: useProfile = false } = config.dag;
  const tracerIntervalMs = 1_000 * config.tracerIntervalS;
  if (tracerIntervalMs < 1 && !useProfile) return {};
  const folder = logFolder ?? resolve(LOG_FOLDER);
  // Processes cannot share a file that is rotated.
  const own = worker === undefined ? folder : join(folder, `worker-${worker}`);
  return { logFolder: own, tracerIntervalMs, useProfile };
}

/** Only what the file says, so that the settings of the op's constructor apply otherwise. */
function toOpSettings(op: PipelineOpConfig, client: OpClient | undefined): OpSettings {
  const { concurrency, timeout, retry, batch_size: batchSize } = op;
  const { auto_batching_timeout: autoBatchingTimeoutMs } = op;
  return {
    ...(concurrency !== undefined && { concurrency }),
    ...(timeout !== undefined && { timeoutMs: timeout }),
    ...(retry !== undefined && { retry }),
    ...(batchSize !== undefined && { batchSize }),
    ...(autoBatchingTimeoutMs !== undefined && { autoBatchingTimeoutMs }),
    ...(client !== undefined && { client }),
  };
}

/**
 * The client of an op: its servers, else its local model, else none. A KServe model has the name of
 * the op.
 */
function createOpClient(
  name: string,
  op: PipelineOpConfig,
  definition: PipelineDefinition,
  { models, predictor, logger }: ProtocolContext,
): OpClient | undefined {
  const model = definition.modelOfOp.get(name);
  const { server_endpoints: endpoints = [], fetch_list: ownList, local_service_conf: local } = op;
  const fetchList = ownList ?? local?.fetch_list ?? [];
  if (endpoints.length > 0) {
    const protocol =
      op.client_type ?? local?.client_type ?? definition.config.dag.client_type ?? 'brpc';
    if (protocol === 'local_predictor') {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `op ${name}: client_type local_predictor with server_endpoints; remove one of them`,
      );
    }
    const variables = definition.variables.get(name);
    const kserveModel = protocol === 'kserve' ? { model: name } : {};
    const names = new VariableNames({ ...variables, fetchList });
    return createRemoteClient(name, { endpoints, protocol, names, logger, ...kserveModel });
  }
  if (model === undefined) return undefined;
  return new LocalPredictor({
    models,
    predictor,
    model,
    readRows: readLocalRows,
    ...(fetchList.length > 0 && { names: new VariableNames({ fetchList }) }),
  });
}

/** @throws CubeError INVALID_ARGUMENT naming the op */
function createRemoteClient(op: string, options: RemoteClientOptions): RemoteClient {
  try {
    return new RemoteClient(options);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `op ${op}: server_endpoints: ${message}`);
  }
}
