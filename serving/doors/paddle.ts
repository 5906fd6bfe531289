/**
 * Paddle's doors: the general model service over baidu_std, gRPC and HTTP (JSON or protobuf). Drawn in docs/wire/paddle.md.
 *
 * What a caller did wrong is an answer with `err_no` and `err_msg`; what another replica may do better is an error of the
 * protocol, so that callers' retries see it. Over HTTP both have the status of their code.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import { ERROR_TEXT_CHARS_MAX } from '../../lib/core/limits.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';
import { COMPRESSION_GZIP, compress } from '../../lib/rpc/compression.ts';
import type { GrpcHandler } from '../../lib/rpc/grpc-calls.ts';
import { ERROR_CODE_HEADER } from '../../lib/rpc/http-direct.ts';
import type { RpcHandler } from '../../lib/rpc/rpc-routes.ts';
import {
  decodeGeneralRequest,
  encodeGeneralResponse,
  GENERAL_MODEL_METHODS,
  GENERAL_MODEL_SERVICE,
  type GeneralModelMethod,
  type GeneralModelRequest,
  type GeneralModelResponse,
} from '../../proto/general-model.ts';
import { formatGeneralResponse, parseGeneralRequest } from '../../proto/general-model-json.ts';
import type { GeneralModelLimits } from '../../proto/general-tensor.ts';
import type { Prediction } from '../engine/predictor.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { ROWS_PER_REQUEST_MAX } from '../serving-limits.ts';
import { answer, baiduCall, type DoorCall, grpcCall, httpCall, textOf } from './answer.ts';
import type { DoorContext, Fronts } from './fronts.ts';
import { PaddleFetch } from './paddle-fetch.ts';
import { PaddleFeeds } from './paddle-rows.ts';

/** A service name of a configuration, and what it serves. */
export interface PaddleService {
  readonly name: string;
  readonly model: string;
  /** What callers call tensors, to the names of the model. */
  readonly aliases?: ReadonlyMap<string, string>;
}

const LIMITS: GeneralModelLimits = { tensors: 4096, values: 1 << 20 };
const NO_ALIASES: ReadonlyMap<string, string> = new Map();
const PROTOBUF_TYPES = ['application/proto', 'application/protobuf', 'application/x-protobuf'];
/** Smaller answers gain nothing by compression. */
const GZIP_BYTES_MIN = 512;

/** @param services beside GeneralModelService, which serves the one model of a process or the first of these */
export function addPaddleDoor(
  fronts: Fronts,
  context: DoorContext,
  services: readonly PaddleService[] = [],
): void {
  const general = { ...services[0], name: GENERAL_MODEL_SERVICE };
  const short = GENERAL_MODEL_SERVICE.slice(GENERAL_MODEL_SERVICE.lastIndexOf('.') + 1);
  const others = services.filter(({ name }) => name !== short && name !== GENERAL_MODEL_SERVICE);
  for (const service of [general, ...others]) {
    const door = new PaddleDoor(context, service);
    for (const method of GENERAL_MODEL_METHODS) {
      fronts.routes.add(service.name, method, door.baidu(method));
      const names = service === general ? [service.name, short] : [service.name];
      for (const name of names) fronts.http.app.post(`/${name}/${method}`, door.http(method));
      if (service === general) fronts.grpc.addUnary(service.name, method, door.grpc(method));
    }
  }
}

/** One service, whichever way it is called. */
class PaddleDoor {
  readonly #context: DoorContext;
  readonly #service: Partial<PaddleService>;
  /** What each loaded version takes and gives. */
  readonly #feeds = new WeakMap<LoadedBundle, PaddleFeeds>();
  readonly #fetches = new WeakMap<LoadedBundle, PaddleFetch>();

  constructor(context: DoorContext, service: Partial<PaddleService>) {
    this.#context = context;
    this.#service = service;
  }

  baidu(method: GeneralModelMethod): RpcHandler {
    return ({ bytes, payloadStart, payloadEnd, timeoutMs }, response) => {
      const request = decodeGeneralRequest(bytes.slice(payloadStart, payloadEnd), LIMITS);
      const deferred = response.defer();
      const signal = {
        get aborted(): boolean {
          return deferred.abandoned;
        },
      };
      this.#answerOrSay(method, request, baiduCall(timeoutMs, signal)).then(
        (answered) => {
          if (!deferred.abandoned) {
            deferred.begin(0);
            deferred.output.append(encodeGeneralResponse(answered));
          }
          deferred.finish();
        },
        (error) => deferred.fail(error),
      );
    };
  }

  grpc(method: GeneralModelMethod): GrpcHandler {
    return async (bytes, call) => {
      const request = decodeGeneralRequest(bytes, LIMITS);
      return encodeGeneralResponse(await this.#answerOrSay(method, request, grpcCall(call)));
    };
  }

  http(method: GeneralModelMethod) {
    return async (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => {
      const type = request.headers['content-type']?.split(';')[0]?.trim().toLowerCase() ?? '';
      const isProtobuf = PROTOBUF_TYPES.includes(type);
      const question = isProtobuf
        ? decodeGeneralRequest(bytesOf(request.body), LIMITS)
        : parseGeneralRequest(textOf(request.body), 'body', LIMITS);
      let answered: GeneralModelResponse;
      try {
        answered = await this.#answer(method, question, httpCall(request.headers, reply.raw));
      } catch (error) {
        const { http, brpc, retryable } = CubeError.from(error).status;
        reply.status(http).header(ERROR_CODE_HEADER, brpc);
        if (retryable) reply.header('retry-after', '1');
        answered = this.#failed(question, error);
      }
      reply.type(isProtobuf ? type : 'application/json');
      const body = isProtobuf
        ? encodeGeneralResponse(answered)
        : Buffer.from(formatGeneralResponse(answered));
      return sendBody(body, request, reply);
    };
  }

  /** The answer; of what failed because of the request, one that says so. @throws CubeError that another try may not get */
  async #answerOrSay(
    method: GeneralModelMethod,
    request: GeneralModelRequest,
    call: DoorCall,
  ): Promise<GeneralModelResponse> {
    try {
      return await this.#answer(method, request, call);
    } catch (error) {
      if (CubeError.from(error).status.retryable) throw error;
      return this.#failed(request, error);
    }
  }

  async #answer(
    method: GeneralModelMethod,
    { tensors, fetchNames, profileServer, logId }: GeneralModelRequest,
    call: DoorCall,
  ): Promise<GeneralModelResponse> {
    const isDebug = method === 'debug';
    const profile = new Profile(this.#context);
    const outputs = await answer(this.#context, 'paddle', call, () => {
      const bundle = this.#bundle();
      const aliases = this.#service.aliases ?? NO_ALIASES;
      const fetch = this.#fetchOf(bundle).choose(fetchNames, aliases);
      const rows = this.#feedsOf(bundle).rows(tensors, ROWS_PER_REQUEST_MAX, aliases);
      profile.end();
      return {
        ...{ bundle, rows, detail: isDebug },
        answer: (prediction: Prediction) => {
          profile.end();
          const scores = { tensors: fetch(prediction), engineName: bundle.manifest.bundle };
          return isDebug ? [scores, debugOutput(prediction, bundle)] : [scores];
        },
      };
    });
    profile.end();
    const profileTime = profileServer || isDebug ? profile.times : [];
    return { outputs, profileTime, profileServer, logId, errNo: 0, errMsg: '' };
  }

  #failed({ profileServer, logId }: GeneralModelRequest, error: unknown): GeneralModelResponse {
    const { code, message, status } = CubeError.from(error);
    if (code === 'INTERNAL')
      this.#context.logger.error({ err: error, logId: `${logId}` }, 'call failed');
    return {
      ...{ outputs: [], profileTime: [], profileServer, logId },
      errNo: status.brpc,
      errMsg: message.slice(0, ERROR_TEXT_CHARS_MAX),
    };
  }

  #bundle(): LoadedBundle {
    const { models } = this.#context;
    return this.#service.model === undefined ? models.only() : models.find(this.#service.model);
  }

  #feedsOf(bundle: LoadedBundle): PaddleFeeds {
    const feeds = this.#feeds.get(bundle) ?? new PaddleFeeds(bundle);
    this.#feeds.set(bundle, feeds);
    return feeds;
  }

  #fetchOf(bundle: LoadedBundle): PaddleFetch {
    const fetch = this.#fetches.get(bundle) ?? new PaddleFetch(bundle);
    this.#fetches.set(bundle, fetch);
    return fetch;
  }
}

/** Begin and end of reading, inferring and answering, in microseconds of the wall clock. */
class Profile {
  readonly #clock: DoorContext['clock'];
  readonly #offsetMs: number;
  readonly times: number[] = [];
  #lastMs: number;

  constructor({ clock }: DoorContext) {
    this.#clock = clock;
    this.#lastMs = clock.nowMs();
    this.#offsetMs = wallClockMs() - this.#lastMs;
  }

  /** The step that runs has ended, the next begins. */
  end(): void {
    const nowMs = this.#clock.nowMs();
    for (const ms of [this.#lastMs, nowMs])
      this.times.push(Math.round(1_000 * (this.#offsetMs + ms)));
    this.#lastMs = nowMs;
  }
}

/** What `debug` says beside the scores: one string each, `name=value`. */
function debugOutput(prediction: Prediction, { manifest }: LoadedBundle) {
  const { version, unseen, unavailable, degraded, slots = [], timings } = prediction;
  const strings = [
    `model=${manifest.bundle}`,
    `version=${manifest.version}`,
    `tables_version=${version}`,
    `unseen=${unseen}`,
    `unavailable=${unavailable}`,
    `degraded=${degraded}`,
    `queue_micros=${Math.round(timings.queueMicros)}`,
    `lookup_micros=${Math.round(timings.lookupMicros)}`,
    `infer_micros=${Math.round(timings.inferMicros)}`,
    ...slots.map(
      ({ slot, ...counts }) =>
        `slot ${slot}: hit=${counts.hit} unseen=${counts.unseen} unavailable=${counts.unavailable}`,
    ),
  ];
  const tensor = { name: 'debug', aliasName: 'debug', shape: [strings.length], strings };
  return { tensors: [tensor], engineName: 'debug' };
}

function bytesOf(body: unknown): Uint8Array {
  return body instanceof Uint8Array ? body : new Uint8Array(0);
}

function sendBody(body: Uint8Array, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const accepted = request.headers['accept-encoding'];
  if (body.length < GZIP_BYTES_MIN || !/\bgzip\b(?!;\s*q=0(\.0*)?\b)/.test(String(accepted))) {
    return reply.send(body);
  }
  reply.header('content-encoding', 'gzip').header('vary', 'accept-encoding');
  return reply.send(compress(COMPRESSION_GZIP, body));
}
