/**
 * The console over HTTP: the page with its files, the snapshot and the stream of events. The page
 * is static and public; a guard decides who may read the data.
 */
import { basename, join } from 'node:path';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../core/errors.ts';
import { listFolder, readFile } from '../platform/files.ts';
import type { Operations } from '../rpc/openapi.ts';
import type { ConsoleFeed } from './console-feed.ts';

const CONSOLE_SNAPSHOT = '/v1/console/snapshot';
const CONSOLE_EVENTS = '/v1/console/events';

/** Seen from dist/lib/console, in a checkout and in an installed package. */
const FOLDER = join(import.meta.dirname, '..', '..', 'console');
const FILE_BYTES_MAX = 4 << 20;
const TYPES: Readonly<Record<string, string>> = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
};
/** The page runs its own files and calls its own process, and nothing else. */
const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
].join('; ');
const HEADERS = {
  'content-security-policy': CONTENT_SECURITY_POLICY,
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
} as const;

/** The routes for the OpenAPI document of the process. */
export const CONSOLE_OPERATIONS: Operations = {
  'GET /': { summary: 'The console: a page for browsers', answer: 'text/html' },
  'GET /console': { summary: 'The same page', answer: 'text/html' },
  'GET /console/{file}': { summary: 'Files of the page', answer: 'text/plain' },
  [`GET ${CONSOLE_SNAPSHOT}`]: { summary: 'State and samples of the last fifteen minutes' },
  [`GET ${CONSOLE_EVENTS}`]: {
    summary: 'Samples and changes of the state as server-sent events',
    answer: 'text/event-stream',
  },
};

type Guard = (request: FastifyRequest) => Promise<void>;

/** @param guard throws when the caller may not read the data; undefined: everyone may */
export function registerConsole(app: FastifyInstance, feed: ConsoleFeed, guard?: Guard): void {
  const sendFile = (reply: FastifyReply, name: string): FastifyReply => {
    const type = TYPES[name.slice(name.lastIndexOf('.') + 1)];
    // Only names that the build wrote: a path from outside never reaches the file system.
    if (type === undefined || !listFolder(FOLDER).includes(name)) {
      throw new CubeError('NOT_FOUND', `the console has no file ${JSON.stringify(name)}`);
    }
    const body = Buffer.from(readFile(join(FOLDER, name), FILE_BYTES_MAX));
    // The name of every file except the page contains a digest of its content.
    const cache = name === 'index.html' ? 'no-cache' : 'public, max-age=31536000, immutable';
    return reply.headers(HEADERS).header('cache-control', cache).type(type).send(body);
  };
  for (const path of ['/', '/console']) {
    app.get(path, (_request, reply) => sendFile(reply, 'index.html'));
  }
  app.get<{ Params: { file: string } }>('/console/:file', ({ params }, reply) =>
    sendFile(reply, basename(params.file)),
  );
  const options = guard === undefined ? {} : { onRequest: guard };
  app.get(CONSOLE_SNAPSHOT, options, async (_request, reply) => {
    reply.header('cache-control', 'no-store');
    return feed.takeSnapshot();
  });
  app.get(CONSOLE_EVENTS, options, (request, reply) => {
    feed.addStream(reply.raw, async () => {
      request.grant?.check();
      await guard?.(request);
    });
    reply.hijack();
  });
}
