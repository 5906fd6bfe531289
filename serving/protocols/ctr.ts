/**
 * The CTR protocol over HTTP: raw rows in (tab-separated lines, JSON, or a stream of JSON lines),
 * click probabilities out. Specified in docs/wire/serving.md.
 */
import { isUtf8 } from 'node:buffer';
import { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseJsonRowsInSlices } from '../../lib/core/json-rows.ts';
import type { SlicedWork } from '../../lib/core/json-slices.ts';
import { parseNonFiniteJson } from '../../lib/core/non-finite-json.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import { parseTsvKeys } from '../../lib/core/tsv-keys.ts';
import {
  type HttpAdmit,
  type HttpRequest,
  type HttpResponse,
  JSON_CONTENT_TYPE,
} from '../../lib/rpc/direct-routes.ts';
import { handleFastifyRequest, STREAMED_TYPE } from '../../lib/rpc/http-server.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { HttpCallContext, HttpHeadContext } from './call-context.ts';
import { registerCtrGrpc } from './ctr-grpc.ts';
import { findBundle, parseCtrOptions } from './ctr-options.ts';
import { formatCtrJson, toCtrResponse } from './ctr-response.ts';
import type { Endpoints } from './endpoints.ts';
import {
  admitHead,
  handlePrediction,
  type ParsedRequest,
  type ProtocolContext,
  readBodyText,
  runUnlessLarge,
} from './handle-prediction.ts';
import { checkExperimentKey, ROWS_PER_REQUEST_MAX } from './request-limits.ts';

const PATH = '/v1/ctr::predict';
const TSV_CONTENT_TYPE = 'text/tab-separated-values';
const KEY_FIELD = 'experimentKey';
const BODY_FIELDS = ['rows', 'shared', KEY_FIELD];

export function registerCtr(fronts: Endpoints, context: ProtocolContext): void {
  registerCtrGrpc(fronts, context);
  const handler = async (call: HttpRequest): Promise<HttpResponse> => {
    const options = parseCtrOptions(call.query);
    const { priority, detail, profile } = options;
    const callContext = new HttpCallContext(call, priority);
    const response = await handlePrediction(context, 'ctr', callContext, {
      find: (models) => findBundle(models, options),
      parse: (choose) => {
        const toRequest = (
          rows: FeatureRows | KeyedRows,
          bundle: LoadedBundle,
        ): ParsedRequest<object> => ({
          bundle,
          rows,
          detail,
          profile,
          ...(priority === undefined ? {} : { priority }),
          formatResponse: (prediction) => formatCtrJson(toCtrResponse(prediction, bundle, options)),
        });
        const type = getContentType(call);
        if (type !== JSON_CONTENT_TYPE) {
          const bundle = choose();
          return toRequest(parseTsvRows(call.body, type, bundle), bundle);
        }
        const text = readBodyText(call.body);
        return runUnlessLarge(parseJsonBody(text, choose, toRequest), text.length);
      },
    });
    return { type: JSON_CONTENT_TYPE, body: JSON.stringify(response) };
  };
  const admit: HttpAdmit = (head) => {
    // Streamed lines wait instead.
    if (getContentType(head) === STREAMED_TYPE) return undefined;
    const options = parseCtrOptions(head.query);
    const call = new HttpHeadContext(head, options.priority);
    const find = (): LoadedBundle => findBundle(context.models, options);
    return admitHead(context, 'ctr', call, find);
  };
  const { directRoutes } = fronts.http;
  const lines = { path: PATH, contentTypes: [TSV_CONTENT_TYPE], admit, handler };
  directRoutes.add({ ...lines, readsBodyAtOnce: true });
  // A large body is parsed in slices, in later turns of the event loop.
  directRoutes.add({ ...lines, contentTypes: [JSON_CONTENT_TYPE] });
  fronts.http.app.post(PATH, { config: { streams: true, admit } }, async (request, reply) => {
    if (getContentType(request) === STREAMED_TYPE) return scoreLines(context, request, reply);
    return handleFastifyRequest(handler, request, reply);
  });
}

/** Each line says whether it is degraded. */
class LinesCallContext extends HttpCallContext {
  override markDegraded(): void {}

  override markVariants(): void {}
}

function getContentType({ headers }: Pick<HttpRequest, 'headers'>): string {
  const given = headers['content-type'];
  // Most callers send one of these as it is.
  if (given === TSV_CONTENT_TYPE || given === JSON_CONTENT_TYPE) return given;
  return given?.split(';')[0]?.trim().toLowerCase() ?? '';
}

/** Scores a stream of JSON lines while it arrives. */
async function scoreLines(
  context: ProtocolContext,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  // Few processes get such streams.
  const { LINE_PRIORITY, LineScorer } = await import('./ctr-lines.ts');
  const encoding = request.headers['content-encoding'] ?? 'identity';
  if (encoding !== 'identity') {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${STREAMED_TYPE} is not accepted with Content-Encoding: send it uncompressed`,
    );
  }
  const options = parseCtrOptions(request.query);
  const priority = options.priority ?? LINE_PRIORITY;
  const { headers, grant } = request;
  const call = new LinesCallContext({ headers, raw: reply.raw, grant }, priority);
  if (options.profile || call.wantsProfile()) {
    const remedy = `send rows as ${TSV_CONTENT_TYPE} or ${JSON_CONTENT_TYPE}`;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `profile: not supported for ${STREAMED_TYPE}: ${remedy}`,
    );
  }
  call.timeoutMs();
  const scorer = new LineScorer(context, options, call);
  const lines = scorer.scoreBody(request.body as Readable);
  return reply.type(STREAMED_TYPE).send(Readable.from(lines, { objectMode: false }));
}

/** @throws CubeError INVALID_ARGUMENT, TOO_LARGE */
function* parseJsonBody<T>(
  text: string,
  choose: (key?: string) => LoadedBundle,
  toRequest: (rows: FeatureRows | KeyedRows, bundle: LoadedBundle) => T,
): SlicedWork<T> {
  const json = yield* JsonReader.parseInSlices(text, 'body', parseNonFiniteJson);
  json.rejectUnknownFields(BODY_FIELDS);
  const [rows, shared] = [json.field('rows'), json.field('shared')];
  const key = json.optional(KEY_FIELD, ({ value }) => checkExperimentKey(value, KEY_FIELD));
  const bundle = choose(key);
  const { features } = bundle;
  const parsed = yield* parseJsonRowsInSlices(rows, features, ROWS_PER_REQUEST_MAX, shared);
  return toRequest(parsed, bundle);
}

/** @throws CubeError INVALID_ARGUMENT, TOO_LARGE */
function parseTsvRows(
  body: unknown,
  type: string,
  { features }: LoadedBundle,
): FeatureRows | KeyedRows {
  if (type === TSV_CONTENT_TYPE)
    return parseTsvKeys(readTsvBody(body), features, ROWS_PER_REQUEST_MAX);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `Content-Type ${quoteInput(type)} is not supported: send rows as ${TSV_CONTENT_TYPE}, ` +
      `{"rows": [...]} as ${JSON_CONTENT_TYPE}, ` +
      `or one JSON row per line as ${STREAMED_TYPE}`,
  );
}

function readTsvBody(body: unknown): Uint8Array {
  if (!(body instanceof Uint8Array) || body.length === 0) readBodyText(body);
  const bytes = body as Uint8Array;
  if (isUtf8(bytes)) return bytes;
  throw new CubeError('INVALID_ARGUMENT', 'the body is not UTF-8 text');
}
