/**
 * A proxy between the clients in other languages and a serving process. The path of a request
 * begins with the name of the client and of a scenario, which says what goes wrong.
 */
import { once } from 'node:events';
import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  request,
  type ServerResponse,
} from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

/** What a client sent in one scenario. */
export interface Traffic {
  readonly requests: IncomingHttpHeaders[];
  readonly connections: Set<Socket>;
  /** Content encoding of the last answer. */
  answerEncoding?: string | undefined;
}

type Fault = (response: ServerResponse) => void;

const NOTHING = (): void => undefined;

function answerJson(status: number, code: string, headers: Record<string, string> = {}): Fault {
  return (response) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(JSON.stringify({ code, error: `scenario ${code}` }));
  };
}

function answerPage(status: number): Fault {
  return (response) => {
    response.writeHead(status, { 'content-type': 'text/html' });
    response.end('<html>proxy</html>');
  };
}

const UNAVAILABLE = answerJson(503, 'UNAVAILABLE', { 'retry-after': '1' });

/** Scenarios in which the first request fails. */
const FIRST_FAULTS: Readonly<Record<string, Fault>> = {
  'unavailable-once': UNAVAILABLE,
  'bad-gateway-once': answerPage(502),
  'not-json-once': answerPage(200),
  'overloaded-once': answerJson(429, 'OVERLOADED', { 'retry-after': '1' }),
  'reset-once': (response) => response.destroy(),
  'truncated-once': (response) => {
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': '1000' });
    response.write('{"model":', () => response.destroy());
  },
};
/** Scenarios in which every request fails. */
const FAULTS: Readonly<Record<string, Fault>> = {
  unavailable: UNAVAILABLE,
  'unavailable-always': UNAVAILABLE,
  forbidden: answerPage(403),
  'overloaded-long': answerJson(429, 'OVERLOADED', { 'retry-after': '3600' }),
  'server-deadline': answerJson(504, 'DEADLINE_EXCEEDED'),
  silent: NOTHING,
  'slow-body': (response) => {
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': '100000' });
    const timer = setInterval(() => response.write(' '), 50);
    response.on('close', () => clearInterval(timer));
  },
};
const FORWARDED: readonly string[] = ['plain', 'count', 'gzip', 'keep-alive', 'headers'];

export class ScenarioProxy {
  readonly #target: string;
  readonly #traffic = new Map<string, Traffic>();
  readonly #server = createServer((incoming, response) => this.#handle(incoming, response));

  /** @param target base address of the serving process */
  constructor(target: string) {
    this.#target = target;
  }

  /** @returns the base address; a client appends its name */
  async listen(): Promise<string> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  traffic(client: string, scenario: string): Traffic {
    const name = `${client}/${scenario}`;
    const known = this.#traffic.get(name) ?? { requests: [], connections: new Set() };
    this.#traffic.set(name, known);
    return known;
  }

  #handle(incoming: IncomingMessage, response: ServerResponse): void {
    const [, client = '', scenario = '', path = ''] =
      /^\/([^/]*)\/([^/]*)(\/.*)$/.exec(incoming.url ?? '') ?? [];
    const traffic = this.traffic(client, scenario);
    traffic.requests.push(incoming.headers);
    traffic.connections.add(incoming.socket);
    const isFirst = traffic.requests.length === 1;
    const firstFault = FIRST_FAULTS[scenario];
    const fault = isFirst && firstFault ? firstFault : FAULTS[scenario];
    if (fault !== undefined) {
      incoming.resume();
      incoming.on('end', () => fault(response));
    } else if (firstFault !== undefined || FORWARDED.includes(scenario)) {
      this.#forward(incoming, response, path, traffic, scenario === 'headers');
    } else {
      answerJson(404, 'NOT_FOUND')(response);
    }
  }

  #forward(
    incoming: IncomingMessage,
    response: ServerResponse,
    path: string,
    traffic: Traffic,
    hasVariants: boolean,
  ): void {
    const { method = 'GET', headers } = incoming;
    const outgoing = request(this.#target + path, { method, headers }, (answer) => {
      traffic.answerEncoding = answer.headers['content-encoding'];
      if (hasVariants) response.setHeader('hypercube-experiments', 'ranking=b, layout=control');
      response.writeHead(answer.statusCode ?? 500, answer.headers);
      answer.pipe(response);
    });
    outgoing.on('error', () => response.destroy());
    incoming.pipe(outgoing);
  }
}
