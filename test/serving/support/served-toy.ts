/** A serving process of a toy bundle with access control, in the process of the test. */
import { existsSync, readFileSync } from 'node:fs';
import { request } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { createCtrRequest } from '../../../lib/client/ctr-rows.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import {
  CTR_PREDICT,
  CTR_PREDICT_STREAM,
  CTR_SERVICE,
  encodeCtrRequest,
} from '../../../proto/ctr.ts';
import { GENERAL_MODEL_SERVICE } from '../../../proto/general-model.ts';
import { OutputBuffer } from '../../../proto/output-buffer.ts';
import { RequestEncoder } from '../../../proto/request-encoder.ts';
import { completeConfig, type ServingSettings } from '../../../serving/config/serving-config.ts';
import { startServing } from '../../../serving/server.ts';
import { KeyCommands } from '../../access/support/key-commands.ts';
import { RawConnection, waitUntil } from '../../rpc/support/echo-server.ts';
import { encodeRequest } from './paddle-client.ts';
import { createPaddleRequest } from './protocol-clients.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './toy-bundle.ts';
import { ToyRepository } from './toy-service.ts';

export const ROWS: ReturnType<typeof toyRows> = toyRows(3);
export const TSV = 'text/tab-separated-values';

const same = (bytes: Buffer): Buffer => bytes;

function encodeRows(): Buffer {
  return Buffer.from(encodeCtrRequest(createCtrRequest(toTsv(ROWS), {})));
}

function toMetadata(fields: Record<string, string>): Metadata {
  const metadata = new Metadata();
  for (const [name, value] of Object.entries(fields)) metadata.set(name, value);
  return metadata;
}

export class ServedToy {
  readonly folder: string;
  readonly keys: KeyCommands;
  address = '';

  private constructor(folder: string) {
    this.folder = folder;
    this.keys = new KeyCommands(join(folder, 'keys.json'));
    this.keys.add('unused', '--scope', 'metrics');
  }

  /** @param prepare adds keys and returns settings */
  static async start(
    t: TestContext,
    prepare: (served: ServedToy) => Partial<ServingSettings> = () => ({}),
  ): Promise<ServedToy> {
    const toys = new ToyRepository(t);
    await toys.publish(new ToyBundle({ version: '1', seed: 5 }));
    await toys.activate('1');
    const served = new ServedToy(toys.folder);
    const config = completeConfig({
      port: 0,
      timeoutMs: 60_000,
      keyFile: served.keys.file,
      auditFile: join(toys.folder, 'audit.jsonl'),
      models: [{ repository: toys.location, bundle: BUNDLE, store: 'memory', instances: 1 }],
      ...prepare(served),
    });
    const file = { path: served.logFile, bytesMax: 64 << 20, filesMax: 1 };
    const logger = createLogger('serving', { level: 'debug', format: 'json', file });
    const serving = await startServing({ config, logger });
    t.after(() => serving.stop());
    served.address = serving.address;
    await waitUntil(() => served.#isReady(config.tlsOnly));
    return served;
  }

  get logFile(): string {
    return join(this.folder, 'serving.log');
  }

  #isReady(isSecure: boolean): Promise<boolean> {
    const send = isSecure ? httpsRequest : request;
    const options = {
      host: '127.0.0.1',
      port: this.port,
      path: '/readyz',
      headers: { 'x-forwarded-for': '192.0.2.1' },
      rejectUnauthorized: false,
      agent: false as const,
    };
    return new Promise((resolve, reject) => {
      send(options, (response) => {
        response.resume();
        resolve(response.statusCode === 200);
      })
        .on('error', reject)
        .end();
    });
  }

  get port(): number {
    return Number(this.address.split(':').at(-1));
  }

  fetch(path: string, init: RequestInit = {}): Promise<Response> {
    return fetch(`http://${this.address}${path}`, init);
  }

  /** @returns the status, and the error code if there is one */
  async predict(
    headers: Record<string, string> = {},
    rows: ReturnType<typeof toyRows> = ROWS,
  ): Promise<string> {
    const response = await this.fetch(`/v1/ctr:predict`, {
      method: 'POST',
      headers: { 'content-type': TSV, ...headers },
      body: toTsv(rows),
    });
    const { code = '' } = (await response.json()) as { code?: string };
    return `${response.status} ${code}`.trim();
  }

  async predictByGrpc(fields: Record<string, string>): Promise<ServiceError | undefined> {
    return this.callGrpc(fields, `/${CTR_SERVICE}/${CTR_PREDICT}`, encodeRows());
  }

  /** @returns the error of a unary call */
  async callGrpc(
    fields: Record<string, string>,
    path: string,
    bytes: Buffer,
  ): Promise<ServiceError | undefined> {
    const client = new Client(this.address, credentials.createInsecure());
    const error = await new Promise<ServiceError | null>((resolve) => {
      client.makeUnaryRequest(path, same, same, bytes, toMetadata(fields), resolve);
    });
    client.close();
    return error ?? undefined;
  }

  /** A stream of predictions. `send` resolves to `answered`, or the status that ended it. */
  openStream(fields: Record<string, string>): { send(): Promise<'answered' | number> } {
    const client = new Client(this.address, credentials.createInsecure());
    const path = `/${CTR_SERVICE}/${CTR_PREDICT_STREAM}`;
    const stream = client.makeBidiStreamRequest(path, same, same, toMetadata(fields));
    let settle: (result: 'answered' | number) => void = () => undefined;
    stream.on('data', () => settle('answered'));
    stream.on('error', (error: ServiceError) => {
      settle(error.code);
      client.close();
    });
    return {
      send: () =>
        new Promise((resolve) => {
          settle = resolve;
          stream.write(encodeRows());
        }),
    };
  }

  /** @returns the error code, 0 without an error */
  async predictByBaidu(authentication: string | undefined): Promise<number> {
    const connection = new RawConnection(this.port);
    const encoder = new RequestEncoder(GENERAL_MODEL_SERVICE, 'inference');
    encoder.authentication = authentication ?? '';
    const output = new OutputBuffer();
    const payload = encodeRequest(createPaddleRequest(ROWS));
    encoder.write(output, { correlation: 1, timeoutMs: 0, payload, attachment: new Uint8Array(0) });
    connection.socket.write(output.writtenBytes());
    const [answer] = await connection.receive(1);
    connection.socket.destroy();
    return answer?.errorCode ?? -1;
  }

  readAudit(): Record<string, string>[] {
    const path = join(this.folder, 'audit.jsonl');
    if (!existsSync(path)) return [];
    const lines = readFileSync(path, 'utf8').split('\n').filter(Boolean);
    return lines.map((line) => JSON.parse(line));
  }
}
