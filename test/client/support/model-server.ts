/**
 * A general model service over a real socket, for baidu_std: multiplies its first tensor by a
 * factor, and fails in the ways a test selects.
 */
import type { TestContext } from 'node:test';
import { CubeError, type ErrorCode } from '../../../lib/core/errors.ts';
import { DEFAULT_SERVER_LIMITS } from '../../../lib/core/limits.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import type { DeferredResponse } from '../../../lib/rpc/deferred-response.ts';
import { HttpServer } from '../../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../../../lib/rpc/rpc-routes.ts';
import {
  decodeGeneralRequest,
  encodeGeneralResponse,
  GENERAL_MODEL_SERVICE,
  type GeneralModelRequest,
} from '../../../proto/general-model.ts';
import type { GeneralTensor, OutputTensor } from '../../../proto/general-tensor.ts';

export type ModelBehavior = 'answer' | 'stay silent' | ErrorCode;

/** A request that a server has received. */
export interface ReceivedRequest extends GeneralModelRequest {
  readonly compressType: number;
  readonly timeoutMs: number;
}

const LIMITS = { tensors: 64, values: 1 << 20 };

export class FakeModelServer {
  behavior: ModelBehavior = 'answer';
  readonly requests: ReceivedRequest[] = [];
  endpoint = '';
  readonly #factor: number;
  readonly #server: OnePortServer;
  readonly #pending: DeferredResponse[] = [];

  private constructor(factor: number, service: string) {
    this.#factor = factor;
    const logger = createLogger('test', { level: 'silent' });
    const limits = DEFAULT_SERVER_LIMITS;
    const routes = new RpcRoutes();
    routes.add(service, 'inference', (frame, response) => {
      const { bytes, payloadStart, payloadEnd, compressType, timeoutMs } = frame;
      // Results of the decoder are views of the connection's buffer.
      const payload = bytes.slice(payloadStart, payloadEnd);
      const request = decodeGeneralRequest(payload, LIMITS);
      this.requests.push({ ...request, compressType, timeoutMs });
      if (this.behavior === 'stay silent') this.#pending.push(response.defer());
      else if (this.behavior !== 'answer') throw new CubeError(this.behavior, 'as the test says');
      else {
        response.begin(0);
        response.output.append(this.#answer(request));
      }
    });
    const http = new HttpServer(limits, logger);
    this.#server = new OnePortServer({ routes, http, limits, logger });
  }

  static async start(
    t: TestContext,
    factor: number,
    service: string = GENERAL_MODEL_SERVICE,
  ): Promise<FakeModelServer> {
    const server = new FakeModelServer(factor, service);
    server.endpoint = await server.#server.listen('127.0.0.1', 0);
    t.after(() => server.stop());
    return server;
  }

  async stop(): Promise<void> {
    for (const pending of this.#pending.splice(0)) {
      pending.fail(new CubeError('STOPPING', 'the test has ended'));
    }
    await this.#server.stop();
  }

  #answer({ tensors, logId }: GeneralModelRequest): Uint8Array {
    const [first] = tensors;
    return encodeGeneralResponse({
      outputs: [
        { engineName: 'fake', tensors: first === undefined ? [] : [this.#multiply(first)] },
      ],
      profileTime: [],
      profileServer: false,
      logId,
      errNo: 0,
      errMsg: '',
    });
  }

  #multiply({ float32, shape, lod }: GeneralTensor): OutputTensor {
    const scores = float32.map((value) => value * this.#factor);
    const data = new Uint8Array(scores.buffer, scores.byteOffset, scores.byteLength);
    const output = { name: 'prob', aliasName: '', dataType: 'FP32', shape, data } as const;
    return lod.length > 0 ? { ...output, lod } : output;
  }
}
