/**
 * Services of users' own `.proto` files: baidu_std, gRPC and HTTP `POST /{service}/{method}`, with
 * JSON or protobuf bodies. Specified in docs/pipelines.md.
 *
 * A request reaches the ops as its fields. Their own messages have no field for an error, so every
 * failure is one of the protocol: a gRPC status, a baidu_std error, an HTTP status.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { CallGrant } from '../../lib/access/access-gate.ts';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { isLargeJson, runAtOnce } from '../../lib/core/json-slices.ts';
import type { HttpAdmit } from '../../lib/rpc/direct-routes.ts';
import type { GrpcHandler } from '../../lib/rpc/grpc-calls.ts';
import type { RpcHandler } from '../../lib/rpc/rpc-routes.ts';
import { readLogId } from '../../proto/baidu-std.ts';
import { decodeMessage } from '../../proto/message-decoder.ts';
import { encodeMessage } from '../../proto/message-encoder.ts';
import { formatMessage, parseMessage } from '../../proto/message-json.ts';
import type {
  MessageService,
  MessageType,
  MessageValues,
  ServiceMethod,
} from '../../proto/message-schema.ts';
import type { OpValues } from '../pipeline/op.ts';
import {
  BaiduCallContext,
  type CallContext,
  GrpcCallContext,
  HttpCallContext,
} from './call-context.ts';
import type { Endpoints } from './endpoints.ts';
import { isProtobufType, type ProtocolContext, readBodyText } from './handle-prediction.ts';
import { formatVersions, isProductError, toErrorCode, VERSIONS_KEY } from './pipeline-codes.ts';
import { TIMEOUT_MS_MAX } from './request-limits.ts';

/** What answers the requests of a service. */
export interface MessageRunner {
  /** Never rejects. @param options `timeoutMs`: time left in milliseconds */
  run(
    request: { readonly values: OpValues; readonly logId: bigint; readonly method: string },
    options: { readonly signal: AbortSignal; readonly timeoutMs: number },
  ): Promise<{
    readonly errNo: number;
    readonly errMsg: string;
    readonly values: OpValues;
    readonly versions: Readonly<Record<string, string>>;
  }>;
}

/** Services with messages of their own. */
export interface ServedMessages {
  readonly services: readonly MessageService[];
  /** What answers the requests of a service; undefined: it is not served at present. */
  findRunner(service: string): MessageRunner | undefined;
  /** registerMessages: processes without messages of their own do not load it. */
  readonly register: typeof registerMessages;
}

/** Where requests find what answers them, which a reload replaces. */
export interface MessageSource {
  /** It is not stopped before `release`. */
  acquire(): { readonly messages: ServedMessages | undefined; release(): void };
}

/** The header with the code of a product error. */
const ERR_NO_KEY = 'hypercube-err-no';
/** As many numbers as the largest message of Paddle Serving has bytes / 8. */
const LIMITS = { cost: 1 << 25 };
const NEVER_ABORTED = new AbortController().signal;

type Format<T> = (type: MessageType, values: OpValues) => T;

type MessageCall = Pick<CallContext, 'timeoutMs'> & {
  readonly signal: AbortSignal;
  readonly logId: bigint;
  /** Adds a header or a trailer to the answer. */
  setHeader(name: string, value: string): void;
};

/** Registers the methods of a service under its full and its short name. */
export function registerMessages(
  { grpc, http: { app }, routes }: Endpoints,
  context: ProtocolContext,
  service: MessageService,
  source: MessageSource,
): void {
  const { name, shortName, methods } = service;
  const admit: HttpAdmit = ({ grant }) => {
    context.admission.checkOpen();
    grant?.principal.checkModel(shortName);
    return undefined;
  };
  for (const method of methods) {
    const endpoint = new MessageEndpoint(context, service, method, source);
    const checkOpen = (): void => context.admission.checkOpen();
    grpc.addUnary(name, method.name, endpoint.grpc, checkOpen);
    for (const one of new Set([name, shortName])) {
      routes.add(one, method.name, endpoint.baidu);
      app.post(`/${one}/${method.name}`, { config: { admit } }, endpoint.http);
    }
  }
}

class MessageEndpoint {
  readonly #context: ProtocolContext;
  readonly #service: MessageService;
  readonly #method: ServiceMethod;
  readonly #source: MessageSource;

  constructor(
    context: ProtocolContext,
    service: MessageService,
    method: ServiceMethod,
    source: MessageSource,
  ) {
    this.#context = context;
    this.#service = service;
    this.#method = method;
    this.#source = source;
  }

  readonly grpc: GrpcHandler = async (bytes, call) => {
    this.#checkGrant(call.grant);
    const context = new GrpcCallContext(call);
    const messageCall: MessageCall = {
      timeoutMs: () => context.timeoutMs(),
      signal: call.abortSignal,
      logId: parseLogId(call.getMetadata('log-id')),
      setHeader: (name, value) => call.setTrailer(name, value),
    };
    return this.#handle(() => this.#decode(bytes), messageCall, encodeMessage);
  };

  readonly baidu: RpcHandler = (frame, response) => {
    const { bytes, payloadStart, payloadEnd, timeoutMs: metaTimeoutMs } = frame;
    this.#context.admission.checkOpen();
    this.#checkGrant(response.caller.grant);
    const message = bytes.slice(payloadStart, payloadEnd);
    const logId = readLogId(frame);
    const deferred = response.defer();
    const context = new BaiduCallContext(metaTimeoutMs, NEVER_ABORTED);
    const timeoutMs = (): number | undefined => context.timeoutMs();
    const call = { timeoutMs, signal: NEVER_ABORTED, logId, setHeader: () => undefined };
    this.#handle(() => this.#decode(message), call, encodeMessage).then(
      (encoded) => {
        deferred.begin(0);
        deferred.output.append(encoded);
        deferred.finish();
      },
      (error) => deferred.fail(error),
    );
  };

  readonly http = async (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => {
    const { headers, body } = request;
    const { raw } = reply;
    const abort = new AbortController();
    raw.once('close', () => {
      if (!raw.writableFinished) abort.abort();
    });
    const context = new HttpCallContext({ headers, raw, arrivedMs: 0 });
    const call: MessageCall = {
      timeoutMs: () => context.timeoutMs(),
      signal: abort.signal,
      logId: parseLogId(String(headers['log-id'] ?? '')),
      setHeader: (name, value) => void reply.header(name, value),
    };
    const isProtobuf = isProtobufType(headers['content-type']);
    const parse = isProtobuf
      ? () => this.#decode(body instanceof Uint8Array ? body : new Uint8Array(0))
      : () => this.#parseJson(body, abort.signal);
    const format: Format<Uint8Array | string> = isProtobuf ? encodeMessage : formatMessage;
    const answer = await this.#handle(parse, call, format);
    reply.type(isProtobuf ? String(headers['content-type']) : 'application/json');
    return reply.send(Buffer.from(answer as string));
  };

  #decode(bytes: Uint8Array): MessageValues {
    return decodeMessage(this.#method.request, bytes, LIMITS);
  }

  async #parseJson(body: unknown, signal: AbortSignal): Promise<MessageValues> {
    const text = readBodyText(body);
    const work = parseMessage(this.#method.request, text, 'body');
    return isLargeJson(text.length) ? this.#context.slices.run(work, signal) : runAtOnce(work);
  }

  #checkGrant(grant: CallGrant | undefined): void {
    grant?.principal.checkModel(this.#service.shortName);
  }

  async #handle<T>(
    parse: () => MessageValues | Promise<MessageValues>,
    call: MessageCall,
    format: Format<T>,
  ): Promise<T> {
    const { admission, metrics, requestLog, clock } = this.#context;
    const startMs = clock.nowMs();
    let code: ErrorCode | 'OK' = 'OK';
    let isAdmitted = false;
    const used = this.#source.acquire();
    try {
      admission.enter();
      isAdmitted = true;
      const runner = this.#findRunner(used.messages);
      const values = await this.#run(await parse(), runner, call);
      const answer = formatAnswer(this.#method, values, format);
      metrics.recordAnswer('pipeline');
      return answer;
    } catch (error) {
      const failure = CubeError.from(error);
      code = failure.code;
      metrics.recordFailure('pipeline', code);
      throw failure;
    } finally {
      used.release();
      if (isAdmitted) admission.leave();
      const durationMs = clock.nowMs() - startMs;
      metrics.recordDuration('pipeline', durationMs / 1_000);
      requestLog.record({
        protocol: 'pipeline',
        code,
        durationMs,
        model: undefined,
        prediction: undefined,
      });
    }
  }

  /** @throws CubeError NOT_FOUND for a service that a reload has removed */
  #findRunner(messages: ServedMessages | undefined): MessageRunner {
    const { name } = this.#service;
    const runner = messages?.findRunner(name);
    if (runner !== undefined) return runner;
    throw new CubeError('NOT_FOUND', `service ${name} is not served at present`);
  }

  /** @throws CubeError for an answer with a code */
  async #run(values: MessageValues, runner: MessageRunner, call: MessageCall): Promise<OpValues> {
    const { signal, logId } = call;
    const method = `${this.#service.name}/${this.#method.name}`;
    const timeoutMs = call.timeoutMs() ?? TIMEOUT_MS_MAX;
    const answer = await runner.run({ values, logId, method }, { signal, timeoutMs });
    const versions = formatVersions(answer.versions);
    if (versions !== '') call.setHeader(VERSIONS_KEY, versions);
    const { errNo, errMsg } = answer;
    if (errNo === 0) return answer.values;
    if (!isProductError(errNo)) throw new CubeError(toErrorCode(errNo), errMsg);
    call.setHeader(ERR_NO_KEY, String(errNo));
    throw new CubeError('INVALID_ARGUMENT', `product error ${errNo}: ${errMsg}`);
  }
}

/** Values that do not fit are a defect of the pipeline, not of the request. */
function formatAnswer<T>({ response }: ServiceMethod, values: OpValues, format: Format<T>): T {
  try {
    return format(response, values);
  } catch (error) {
    const { message } = CubeError.from(error);
    throw new CubeError('INTERNAL', `the answer does not fit its message: ${message}`);
  }
}

function parseLogId(text = ''): bigint {
  return /^-?\d{1,19}$/.test(text) ? BigInt.asIntN(64, BigInt(text)) : 0n;
}
