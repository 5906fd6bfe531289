/**
 * A stand-in for Cube's C++ cube-server, with its manners: 200 for a load that failed, random bytes
 * as status, missing files as missing keys, and the lies that tests ask for.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { DEFAULT_SERVER_LIMITS } from '../../../../lib/core/limits.ts';
import { createLogger } from '../../../../lib/platform/logs.ts';
import { HttpServer } from '../../../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../../../lib/rpc/one-port-server.ts';
import { type RpcResponse, RpcRoutes } from '../../../../lib/rpc/rpc-routes.ts';
import { readCubeDict } from '../../../../lib/store/cube-dict.ts';
import type { Frame } from '../../../../proto/baidu-std.ts';
import { DICT_METHOD, DICT_SERVICE, DictRequest } from '../../../../proto/dict.ts';
import { OutputBuffer } from '../../../../proto/output-buffer.ts';
import { onTestEnd } from '../../../repository/support/fixtures.ts';

/**
 * What a load does wrong: nothing, all keys lost, one value of each hundred another one's, the new
 * version's name over the old values (as a patch of the same size), a switch that does not happen,
 * a switch that fails.
 */
export type ServerFault = 'none' | 'empty' | 'shifted' | 'ignored' | 'stuck' | 'broken';

interface Dict {
  readonly version: string;
  readonly values: ReadonlyMap<bigint, Uint8Array>;
}

const NOTHING: Dict = { version: '', values: new Map() };
const VALUE_BYTES_MAX = 1024;

export class OriginalServer {
  readonly commands: string[] = [];
  lie: ServerFault = 'none';
  /** Told before a command is carried out. */
  onCommand: () => void = () => undefined;
  address = '';
  current: Dict = NOTHING;
  #background: Dict | undefined;
  readonly #data: string;

  /** @param folder that it runs in */
  constructor(folder: string) {
    this.#data = join(folder, 'data');
    const name = join(this.#data, 'VERSION');
    const version = existsSync(name) ? (readFileSync(name, 'utf8').split('\n')[0] ?? '') : '';
    if (version !== '') this.current = this.#read(version);
  }

  async listen(t: TestContext): Promise<this> {
    const limits = DEFAULT_SERVER_LIMITS;
    const logger = createLogger('original', { level: 'silent' });
    const routes = new RpcRoutes();
    routes.add(DICT_SERVICE, DICT_METHOD, (frame, response) => this.#seek(frame, response));
    const http = new HttpServer(limits, logger);
    http.app.post('/ControlService/cmd', async ({ body }, reply) => {
      const { status, text } = this.#command(JSON.parse(String(body)));
      return reply.status(status).header('content-type', 'application/json').send(text);
    });
    for (const path of ['/DictService/seek', '/rec.mcube.DictService/seek']) {
      http.app.post(path, async ({ body }) => {
        const { version_required: isVersionWanted } = JSON.parse(String(body));
        return isVersionWanted ? { version: this.current.version } : {};
      });
    }
    http.app.all('/*', async ({ url }, reply) => {
      const text = `[${this.address}][E1002]Fail to find method on \`${url}'`;
      reply.status(404).header('x-bd-error-code', 1002).type('text/plain');
      return reply.send(text);
    });
    const server = new OnePortServer({ routes, http, limits, logger });
    this.address = await server.listen('127.0.0.1', 0);
    onTestEnd(t, () => server.stop());
    return this;
  }

  #command(body: { cmd: string; version_path?: string; version?: string }): {
    status: number;
    text: string | Buffer;
  } {
    this.commands.push([body.cmd, body.version_path ?? body.version ?? ''].join(' ').trim());
    this.onCommand();
    switch (body.cmd) {
      case 'status':
        return {
          status: 200,
          text: Buffer.from('{"cur_version":"\xff\x00","status":0}', 'latin1'),
        };
      case 'bg_load_base':
        this.#background = this.#load((body.version_path ?? '').slice(1));
        return { status: 200, text: 'null' };
      case 'bg_switch':
        return this.#swap();
      case 'enable':
        if (body.version === this.current.version) return { status: 200, text: 'null' };
        if (this.lie === 'broken') return { status: 500, text: 'null' };
        if (this.lie === 'stuck') return { status: 200, text: 'null' };
        return body.version === this.#background?.version
          ? this.#swap()
          : { status: 500, text: 'null' };
      default:
        return { status: 500, text: 'null' };
    }
  }

  #swap(): { status: number; text: string } {
    const { current } = this;
    if (this.#background === undefined) return { status: 500, text: 'null' };
    this.current = this.#background;
    this.#background = current;
    return { status: 200, text: 'null' };
  }

  #load(version: string): Dict {
    if (this.lie === 'ignored') return { version, values: this.current.values };
    if (this.lie === 'empty') return { version, values: new Map() };
    const { values } = this.#read(version);
    if (this.lie !== 'shifted') return { version, values };
    const entries = [...values];
    return {
      version,
      values: new Map(
        entries.map(([key, value], i) => [key, i % 100 === 0 ? entries.at(i - 1)![1] : value]),
      ),
    };
  }

  #read(version: string): Dict {
    const { keys, values, ends } = readCubeDict(join(this.#data, version));
    const words = new BigUint64Array(keys.buffer, 0, ends.length);
    return {
      version,
      values: new Map([...words].map((key, i) => [key, values.slice(ends[i - 1] ?? 0, ends[i])])),
    };
  }

  #seek(frame: Frame, response: RpcResponse): void {
    const request = new DictRequest(1_000_000);
    request.decode(frame.bytes, frame.payloadStart, frame.payloadEnd);
    const keys = new BigUint64Array(request.keyBytes.slice(0, 8 * request.count).buffer);
    response.begin(0);
    const { output } = response;
    for (const key of keys) {
      const value = this.current.values.get(key);
      const inner = new OutputBuffer();
      inner.appendByte(0x08);
      const isHit = value !== undefined && value.length <= VALUE_BYTES_MAX;
      inner.appendVarint(isHit ? 0 : 0xffff_ffff);
      inner.appendByte(0x12);
      inner.appendVarint(isHit ? value.length : 0);
      if (isHit) inner.append(value);
      output.appendByte(0x0a);
      output.appendVarint(inner.writtenBytes().length);
      output.append(inner.writtenBytes());
    }
    if (request.versionRequired) output.appendString(0x12, this.current.version);
  }
}
