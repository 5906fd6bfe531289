/** An HTTP proxy that cuts a response in half and then refuses connections for a while. */
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { onTestEnd } from '../../repository/support/fixtures.ts';

/** One more than a client's attempts for one request, so that requests can fail. */
const REFUSED_AFTER_CUT = 4;

/** @returns a name whose first request is cut off; undefined: the request always passes */
type CutSelector = (method: string, path: string, body: string) => string | undefined;

export class CuttingProxy {
  readonly endpoint: string;
  /** Names of the cut requests, in order. */
  readonly cuts: string[] = [];
  /** Cuts nothing until it is set. */
  selectCut: CutSelector = () => undefined;
  #refusals = 0;
  readonly #target: URL;

  private constructor(target: string, port: number) {
    this.#target = new URL(target);
    this.endpoint = `http://127.0.0.1:${port}`;
  }

  static async start(t: TestContext, target: string): Promise<CuttingProxy> {
    const server = createServer((asked, response) => proxy.#answer(asked, response));
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const proxy = new CuttingProxy(target, (server.address() as AddressInfo).port);
    onTestEnd(t, () => {
      server.closeAllConnections();
      server.close();
    });
    return proxy;
  }

  #answer(asked: IncomingMessage, response: ServerResponse): void {
    if (this.#refusals > 0) {
      this.#refusals -= 1;
      asked.destroy();
      return;
    }
    const pieces: Buffer[] = [];
    asked.on('error', () => undefined);
    asked.on('data', (piece: Buffer) => pieces.push(piece));
    asked.on('end', () => this.#pass(asked, Buffer.concat(pieces), response));
  }

  #pass(
    { method = '', url: path = '', headers }: IncomingMessage,
    body: Buffer,
    response: ServerResponse,
  ): void {
    const { hostname, port } = this.#target;
    const onward = request({ hostname, port, method, path, headers }, (answer) => {
      const pieces: Buffer[] = [];
      answer.on('data', (piece: Buffer) => pieces.push(piece));
      answer.on('end', () => {
        const whole = Buffer.concat(pieces);
        response.writeHead(answer.statusCode ?? 500, answer.headers);
        if (this.#isCut(method, path, body)) {
          response.write(whole.subarray(0, whole.length / 2), () => response.destroy());
        } else {
          response.end(whole);
        }
      });
    });
    onward.on('error', () => response.destroy());
    onward.end(body);
  }

  #isCut(method: string, path: string, body: Buffer): boolean {
    const about = this.selectCut(method, path, body.toString('latin1'));
    if (about === undefined || this.cuts.includes(about)) return false;
    this.cuts.push(about);
    this.#refusals = REFUSED_AFTER_CUT;
    return true;
  }
}
