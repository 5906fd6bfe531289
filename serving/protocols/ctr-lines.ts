/**
 * Bulk scoring: scores a stream of JSON lines and responds with one line per row, in the same
 * order, while the body is still arriving. Memory is bounded by backpressure: a client that reads
 * slowly is read from slowly. An invalid line gets an error with its number, and the other lines
 * are scored. Lines wait while the process is overloaded.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseJsonRows } from '../../lib/core/json-rows.ts';
import { ERROR_TEXT_CHARS_MAX } from '../../lib/core/limits.ts';
import { mapInOrder } from '../../lib/core/map-in-order.ts';
import { parseNonFiniteJson } from '../../lib/core/non-finite-json.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { Prediction } from '../engine/prediction.ts';
import type { CallContext } from './call-context.ts';
import { type CtrOptions, findBundle, PRIORITY_MAX } from './ctr-options.ts';
import { handlePrediction, type ProtocolContext } from './handle-prediction.ts';
import { type LineBatch, readLineBatches } from './line-batches.ts';

const LIMITS = { lineBytes: 256 << 10, batchLines: 512, batchBytes: 1 << 20 };
/** Enough to keep every instance busy while more lines are read. */
const BATCHES_IN_FLIGHT = 4;
/** Pause before lines that were rejected as OVERLOADED are retried. */
const OVERLOADED_RETRY_MS = 20;
/** Bulk lines have the lowest priority: interactive requests go first. */
export const LINE_PRIORITY: number = PRIORITY_MAX;

interface LineRow {
  readonly line: number;
  readonly value: unknown;
}

export class LineScorer {
  readonly #context: ProtocolContext;
  readonly #options: CtrOptions;
  readonly #call: CallContext;

  constructor(context: ProtocolContext, options: CtrOptions, call: CallContext) {
    this.#context = context;
    this.#options = options;
    this.#call = call;
  }

  /** Scores a body; each item is the text of several response lines. */
  scoreBody(body: AsyncIterable<Uint8Array>): AsyncIterable<string> {
    return mapInOrder(
      readLineBatches(body, LIMITS),
      (batch) => this.#scoreBatch(batch),
      BATCHES_IN_FLIGHT,
    );
  }

  async #scoreBatch({ firstLine, lines }: LineBatch): Promise<string> {
    const responses: string[] = new Array(lines.length);
    const rows: LineRow[] = [];
    lines.forEach((text, i) => {
      const line = firstLine + i;
      try {
        if (typeof text !== 'string') throw text;
        rows.push({
          line,
          value: JsonReader.parse(text, `line ${line}`, parseNonFiniteJson).value,
        });
      } catch (error) {
        responses[i] = formatFailedLine(line, error);
      }
    });
    await this.#score(rows, (line, text) => {
      responses[line - firstLine] = text;
    });
    return responses.join('');
  }

  /**
   * Scores rows together. When invalid rows fail the request, splits it in halves until only those
   * rows fail.
   */
  async #score(
    rows: readonly LineRow[],
    setResponse: (line: number, text: string) => void,
  ): Promise<void> {
    if (rows.length === 0) return;
    try {
      const scores = await this.#predict(rows);
      rows.forEach(({ line }, i) => {
        setResponse(line, scores[i]!);
      });
    } catch (error) {
      const { code } = CubeError.from(error);
      if (rows.length > 1 && (code === 'INVALID_ARGUMENT' || code === 'TOO_LARGE')) {
        const middle = rows.length >> 1;
        await this.#score(rows.slice(0, middle), setResponse);
        await this.#score(rows.slice(middle), setResponse);
      } else {
        for (const { line } of rows) setResponse(line, formatFailedLine(line, error));
      }
    }
  }

  async #predict(rows: readonly LineRow[]): Promise<string[]> {
    const { clock } = this.#context;
    const [first, second] = rows;
    const isOneLine = first !== undefined && second === undefined;
    const source = isOneLine ? `line ${first.line}` : 'lines';
    const values = rows.map(({ value }) => value);
    const json = JsonReader.of({ rows: values }, source).field('rows');
    for (;;) {
      this.#call.grant?.check();
      try {
        return await handlePrediction(this.#context, 'ctr', this.#call, {
          find: (models) => findBundle(models, this.#options),
          parse: (choose) => {
            const bundle = choose();
            return {
              bundle,
              rows: parseJsonRows(json, bundle.features, values.length),
              ...(this.#call.priority === undefined ? {} : { priority: this.#call.priority }),
              formatResponse: (prediction: Prediction) => formatScoredLines(prediction, bundle),
            };
          },
        });
      } catch (error) {
        if (CubeError.from(error).code !== 'OVERLOADED' || this.#call.signal.aborted) throw error;
        await clock.sleep(OVERLOADED_RETRY_MS);
      }
    }
  }
}

function formatScoredLines(prediction: Prediction, { manifest, plan }: LoadedBundle): string[] {
  const { clickOutput, clickWidth, rowCount, degraded } = prediction;
  const mark = degraded ? ',"degraded":true' : '';
  const suffix = `,"version":${JSON.stringify(manifest.version)}${mark}}\n`;
  return Array.from(
    { length: rowCount },
    (_, row) => `{"probability":${clickOutput[row * clickWidth + plan.clickColumn]}${suffix}`,
  );
}

function formatFailedLine(line: number, error: unknown): string {
  const { code, message } = CubeError.from(error);
  return `${JSON.stringify({ line, code, error: message.slice(0, ERROR_TEXT_CHARS_MAX) })}\n`;
}
