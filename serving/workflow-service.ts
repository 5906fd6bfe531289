/**
 * Assembles the services of a conf folder whose operators are those of the user: workflows on the
 * pipeline engine, with the messages of `.proto` files.
 */
import { CubeError, requireDefined } from '../lib/core/errors.ts';
import { quoteInput } from '../lib/core/shown-input.ts';
import type { MessageService, ServiceMethod } from '../proto/message-schema.ts';
import { checkMessage, mergeMessages } from '../proto/message-values.ts';
import type { WorkflowServiceConfig } from './config/paddle-conf.ts';
import type { ProtoServices } from './config/proto-file.ts';
import { LocalPredictor } from './pipeline/local-predictor.ts';
import type { OpClient, OpValues } from './pipeline/op.ts';
import type { PipelineAnswer } from './pipeline/pipeline-answer.ts';
import type { PipelineSource } from './pipeline/pipeline-metrics.ts';
import { RemoteClient } from './pipeline/remote-client.ts';
import { PipelineServer } from './pipeline/server.ts';
import {
  buildWorkflow,
  type OperatorClass,
  type WorkflowDefinition,
  type WorkflowNode,
} from './pipeline/workflow.ts';
import type { StartedPipeline } from './pipeline-service.ts';
import type { ProtocolContext } from './protocols/handle-prediction.ts';
import { readLocalRows } from './protocols/local-rows.ts';
import { type MessageRunner, registerMessages } from './protocols/messages.ts';

export interface WorkflowsDefinition {
  readonly services: readonly WorkflowServiceConfig[];
  readonly workflows: readonly WorkflowDefinition[];
  /** Workflow → node → the model that it predicts with. */
  readonly modelOfNode: ReadonlyMap<string, ReadonlyMap<string, string>>;
  readonly messages: ProtoServices;
  readonly operators: ReadonlyMap<string, OperatorClass>;
}

interface RunningWorkflow {
  readonly server: PipelineServer;
  readonly isSequence: boolean;
}

/** @throws CubeError INVALID_ARGUMENT naming the workflow or the service; what `initOp` throws */
export async function startWorkflows(
  definition: WorkflowsDefinition,
  context: ProtocolContext,
): Promise<StartedPipeline> {
  const { messages, workflows, services } = definition;
  const servers = new Map<string, PipelineServer>();
  const running = new Map<string, RunningWorkflow>();
  const stop = async (): Promise<void> => {
    for (const server of servers.values()) await server.stop();
  };
  const runners = new Map<string, WorkflowRunner>();
  try {
    for (const service of services) {
      const { name, methods } = findMessageService(messages, service.name);
      runners.set(name, new WorkflowRunner(service, methods, running));
    }
    for (const workflow of workflows) {
      const { logger } = context;
      const createClient = (node: WorkflowNode): OpClient =>
        createNodeClient(workflow.name, node, definition, context);
      const response = buildWorkflow(workflow, definition.operators, createClient);
      const server = new PipelineServer(response, { logger });
      servers.set(workflow.name, server);
      running.set(workflow.name, { server, isSequence: workflow.isSequence });
      await server.start();
    }
  } catch (error) {
    await stop();
    throw error;
  }
  return {
    name: 'workflows',
    service: undefined,
    messages: {
      // A reload may add services, whose routes are therefore known from the start.
      services: messages.services,
      findRunner: (name) => runners.get(name),
      register: registerMessages,
    },
    definitions: messages.definitions,
    figures: combine(servers),
    stop,
  };
}

/** @param services of the `.proto` files, by full or short name */
function findMessageService({ services }: ProtoServices, name: string): MessageService {
  const found = services.find((one) => one.name === name || one.shortName === name);
  if (found !== undefined) return found;
  const known = services.map((one) => one.name).join(', ');
  throw new CubeError(
    'INVALID_ARGUMENT',
    `service ${name}: no service of this name in the .proto files (they have ${known})`,
  );
}

function createNodeClient(
  workflow: string,
  { name, type, address }: WorkflowNode,
  { modelOfNode }: WorkflowsDefinition,
  { models, predictor, logger }: ProtocolContext,
): OpClient {
  if (type === 'GeneralRemoteOp') {
    return new RemoteClient({ endpoints: address, protocol: 'brpc', logger });
  }
  const model = modelOfNode.get(workflow)?.get(name);
  if (model !== undefined) {
    return new LocalPredictor({ models, predictor, model, readRows: readLocalRows });
  }
  throw new CubeError('INTERNAL', `workflow ${workflow}: node ${name} has no model`);
}

/**
 * Runs the workflows of a service in their order, neighbours of the type Parallel at the same time,
 * and merges their responses in that order.
 */
class WorkflowRunner implements MessageRunner {
  readonly #service: WorkflowServiceConfig;
  readonly #methods: readonly ServiceMethod[];
  readonly #workflows: ReadonlyMap<string, RunningWorkflow>;

  constructor(
    service: WorkflowServiceConfig,
    methods: readonly ServiceMethod[],
    workflows: ReadonlyMap<string, RunningWorkflow>,
  ) {
    this.#service = service;
    this.#methods = methods;
    this.#workflows = workflows;
    const { mapping } = service;
    if (mapping === undefined) return;
    for (const { request } of methods) {
      const field = request.byName.get(mapping.field);
      if (field?.kind === 'single' && field.type === 'string') continue;
      throw new CubeError(
        'INVALID_ARGUMENT',
        `service ${service.name}: request_field_key ${mapping.field}: ${request.name} has no ` +
          'single text field of this name',
      );
    }
  }

  async run(
    request: Parameters<MessageRunner['run']>[0],
    options: Parameters<MessageRunner['run']>[1],
  ): ReturnType<MessageRunner['run']> {
    const deadlineMs = performance.now() + options.timeoutMs;
    const method = this.#methods.find(({ name }) => request.method.endsWith(`/${name}`));
    let merged: OpValues = {};
    const versions: Record<string, string> = {};
    for (const group of this.#choose(request.values)) {
      const timeoutMs = deadlineMs - performance.now();
      for (const answer of await runTogether(group, request, { ...options, timeoutMs })) {
        Object.assign(versions, answer.versions);
        if (answer.errNo !== 0) return { ...answer, versions };
        // Checked before they are merged, so that an error names the field.
        const values =
          method === undefined ? answer.values : mergeAnswers(method, merged, answer.values);
        merged = values;
      }
    }
    return { errNo: 0, errMsg: '', values: merged, versions };
  }

  /**
   * @returns workflows that run at the same time, in lists that run one after the other
   * @throws CubeError INVALID_ARGUMENT for a value that no workflow is for
   */
  #choose(values: OpValues): readonly (readonly PipelineServer[])[] {
    const { name, workflows, mapping } = this.#service;
    let chosen = workflows;
    if (mapping !== undefined) {
      const value = String(values[mapping.field] ?? '');
      const mapped = mapping.workflows.get(value);
      if (mapped === undefined) {
        throw new CubeError(
          'INVALID_ARGUMENT',
          `${mapping.field}: ${name} has no workflow for ${quoteInput(value)} ` +
            `(values: ${[...mapping.workflows.keys()].map(quoteInput).join(', ')})`,
        );
      }
      chosen = mapped;
    }
    return groupParallel(
      chosen.map((one) => requireDefined(this.#workflows.get(one), 'a workflow')),
    );
  }
}

/** The first failure ends the others. Answers are in the order of the workflows. */
async function runTogether(
  servers: readonly PipelineServer[],
  request: Parameters<MessageRunner['run']>[0],
  { signal, timeoutMs }: Parameters<MessageRunner['run']>[1],
): Promise<readonly PipelineAnswer[]> {
  const [only] = servers;
  if (servers.length === 1 && only !== undefined)
    return [await only.run(request, { signal, timeoutMs })];
  const failure = new AbortController();
  const options = { signal: AbortSignal.any([signal, failure.signal]), timeoutMs };
  let failed: PipelineAnswer | undefined;
  const answers = await Promise.all(
    servers.map(async (server) => {
      const answer = await server.run(request, options);
      if (answer.errNo === 0) return answer;
      failed ??= answer;
      failure.abort();
      return answer;
    }),
  );
  return failed === undefined ? answers : [failed];
}

/** Each workflow of the type Sequence alone, neighbours of the type Parallel together. */
function groupParallel(workflows: readonly RunningWorkflow[]): PipelineServer[][] {
  const groups: PipelineServer[][] = [];
  let isOpen = false;
  for (const { server, isSequence } of workflows) {
    const last = groups.at(-1);
    if (isOpen && !isSequence && last !== undefined) last.push(server);
    else groups.push([server]);
    isOpen = !isSequence;
  }
  return groups;
}

function mergeAnswers({ response }: ServiceMethod, before: OpValues, after: OpValues): OpValues {
  const checked = checkMessage(response, after);
  return Object.keys(before).length === 0 ? checked : mergeMessages(response, before, checked);
}

/** The figures of all workflows; ops are named `workflow.node`. */
function combine(servers: ReadonlyMap<string, PipelineServer>): PipelineSource {
  const list = [...servers];
  const sum = (read: (server: PipelineServer) => number): number =>
    list.reduce((total, [, server]) => total + read(server), 0);
  return {
    get stats() {
      return {
        requests: sum(({ stats }) => stats.requests),
        failures: sum(({ stats }) => stats.failures),
        requestMs: sum(({ stats }) => stats.requestMs),
        ops: new Map(
          list.flatMap(([workflow, { stats }]) =>
            [...stats.ops].map(([op, counts]) => [`${workflow}.${op}`, counts] as const),
          ),
        ),
      };
    },
    describe: () => ({
      running: sum((server) => server.describe().running),
      ops: list.flatMap(([workflow, server]) =>
        server.describe().ops.map((op) => ({
          ...op,
          name: `${workflow}.${op.name}`,
          inputs: op.inputs.map((input) => `${workflow}.${input}`),
        })),
      ),
    }),
  };
}
