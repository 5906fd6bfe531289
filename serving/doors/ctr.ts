/**
 * The CTR door: raw rows in (lines of tab-separated columns, JSON, or a stream of JSON lines), click probabilities out. Drawn in
 * docs/wire/serving.md.
 */
import { isUtf8 } from 'node:buffer';
import { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import {
  type FeatureRows,
  type KeyedRows,
  parseJsonRows,
  parseTsvKeys,
} from '../../lib/core/features.ts';
import { JsonReader } from '../../lib/core/json.ts';
import {
  type HttpAnswer,
  type HttpCall,
  JSON_TYPE as JSON_ANSWER,
} from '../../lib/rpc/http-direct.ts';
import { answerBy, STREAMED_TYPE } from '../../lib/rpc/http-front.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { ROWS_PER_REQUEST_MAX } from '../serving-limits.ts';
import { answer, httpCall, textOf } from './answer.ts';
import { ctrAnswer, ctrJson } from './ctr-answer.ts';
import { addCtrGrpc } from './ctr-grpc.ts';
import { LineScorer } from './ctr-lines.ts';
import { bundleOf, readOptions } from './ctr-options.ts';
import type { DoorContext, Fronts } from './fronts.ts';

const PATH = '/v1/ctr::predict';
const TSV = 'text/tab-separated-values';
const JSON_TYPE = 'application/json';

export function addCtrDoor(fronts: Fronts, context: DoorContext): void {
  addCtrGrpc(fronts, context);
  const handler = async (call: HttpCall): Promise<HttpAnswer> => {
    const options = readOptions(call.query);
    const answered = await answer(context, 'ctr', httpCall(call.headers, call.raw), () => {
      const bundle = bundleOf(context.models, options);
      const rows = readCtrRows(call.body, typeOf(call), bundle);
      const { priority, detail } = options;
      return {
        ...{ bundle, rows, detail },
        ...(priority === undefined ? {} : { priority }),
        answer: (prediction) => ctrJson(ctrAnswer(prediction, bundle, options)),
      };
    });
    return { type: JSON_ANSWER, body: JSON.stringify(answered) };
  };
  fronts.http.direct.add({ path: PATH, types: [TSV, JSON_TYPE], handler });
  fronts.http.app.post(PATH, { config: { streams: true } }, async (request, reply) => {
    if (typeOf(request) === STREAMED_TYPE) return sendLines(context, request, reply);
    return answerBy(handler, request, reply);
  });
}

function typeOf({ headers }: Pick<HttpCall, 'headers'>): string {
  return headers['content-type']?.split(';')[0]?.trim().toLowerCase() ?? '';
}

/** Answers lines while they come. */
function sendLines(
  context: DoorContext,
  request: FastifyRequest,
  reply: FastifyReply,
): FastifyReply {
  const encoding = request.headers['content-encoding'] ?? 'identity';
  if (encoding !== 'identity') {
    throw new CubeError('INVALID_ARGUMENT', `${STREAMED_TYPE} is taken as it is, not packed`);
  }
  const call = httpCall(request.headers, reply.raw);
  call.timeoutMs();
  const scorer = new LineScorer(context, readOptions(request.query), call);
  const answers = scorer.answers(request.body as Readable);
  return reply.type(STREAMED_TYPE).send(Readable.from(answers, { objectMode: false }));
}

/** @throws CubeError INVALID_ARGUMENT, TOO_LARGE */
function readCtrRows(
  body: unknown,
  type: string,
  { features }: LoadedBundle,
): FeatureRows | KeyedRows {
  if (type === TSV) return parseTsvKeys(linesOf(body), features, ROWS_PER_REQUEST_MAX);
  if (type === JSON_TYPE) {
    const json = JsonReader.parse(textOf(body), 'body');
    return parseJsonRows(json.field('rows'), features, ROWS_PER_REQUEST_MAX, json.field('shared'));
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    `Content-Type ${JSON.stringify(type)} is not understood: send rows as ${TSV}, {"rows": [...]} as ${JSON_TYPE}, ` +
      `or a row a line as ${STREAMED_TYPE}`,
  );
}

function linesOf(body: unknown): Uint8Array {
  if (!(body instanceof Uint8Array) || body.length === 0) textOf(body);
  const bytes = body as Uint8Array;
  if (isUtf8(bytes)) return bytes;
  throw new CubeError('INVALID_ARGUMENT', 'the body is not UTF-8 text');
}
