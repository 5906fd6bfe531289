/**
 * Responses to requests that no route handles: 405 with the methods that the path has, or 404.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { ERROR_CODE_HEADER } from './direct-routes.ts';

/** brpc's number for an unknown method. */
const NO_SUCH_METHOD = 1002;
const SHOWN_CHARS_MAX = 60;

interface RoutePath {
  readonly pattern: RegExp;
  readonly methods: Set<string>;
}

export class AllowedMethods {
  readonly #paths = new Map<string, RoutePath>();
  readonly #hint: string;

  /**
   * Collects the routes that are added from now on.
   * @param paths existing paths, for the message of a 404
   */
  constructor(app: FastifyInstance, paths: string) {
    this.#hint = paths === '' ? '' : ` (try ${paths})`;
    app.addHook('onRoute', ({ url, method }) => {
      const route = this.#paths.get(url) ?? { pattern: toPattern(url), methods: new Set() };
      for (const name of [method].flat()) route.methods.add(name);
      this.#paths.set(url, route);
    });
  }

  /** Responds to a request without a route, before its body is read. */
  refuse({ method, url }: FastifyRequest, reply: FastifyReply): FastifyReply {
    const path = url.split('?', 1)[0] ?? '';
    const shown = `${method} ${JSON.stringify(path.slice(0, SHOWN_CHARS_MAX)).slice(1, -1)}`;
    const allowed = this.#findMethods(path);
    reply.header(ERROR_CODE_HEADER, NO_SUCH_METHOD);
    if (allowed.length === 0) {
      const error = `Fail to find method on ${shown}${this.#hint}`;
      return reply.status(404).send({ code: 'NOT_FOUND', error });
    }
    const list = allowed.join(', ');
    const error = `${shown} is not supported; this path supports ${list}`;
    return reply.status(405).header('allow', list).send({ code: 'UNSUPPORTED', error });
  }

  #findMethods(path: string): string[] {
    const methods = new Set<string>();
    for (const route of this.#paths.values()) {
      if (!route.pattern.test(path)) continue;
      for (const method of route.methods) methods.add(method);
    }
    return [...methods].sort();
  }
}

/** @param url in fastify's syntax: `:name` is a parameter, `::` a colon, `*` the rest of a path */
function toPattern(url: string): RegExp {
  const text = url.replaceAll(/::|:\w+|[.*+?^${}()|[\]\\]/g, (part) => {
    if (part === '::') return ':';
    if (part === '*') return '.*';
    return part.startsWith(':') ? '[^/]+' : `\\${part}`;
  });
  return new RegExp(`^${text}/?$`);
}
