/**
 * Bulk scoring: lines of JSON rows in, a line of answer for each, in their order, while the body still comes. Memory is bounded
 * however long the body is: a caller that reads slowly is read from slowly. A line that is wrong is answered with its number and
 * what is wrong, and the rest goes on; lines wait while the process has too much to do.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { parseJsonRows } from '../../lib/core/features.ts';
import { inOrder } from '../../lib/core/in-order.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { ERROR_TEXT_CHARS_MAX } from '../../lib/core/limits.ts';
import type { Prediction } from '../engine/predictor.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { answer, type DoorCall } from './answer.ts';
import { bundleOf, type CtrOptions, PRIORITY_MAX } from './ctr-options.ts';
import type { DoorContext } from './fronts.ts';
import { type LineBatch, lineBatches } from './line-batches.ts';

const LIMITS = { lineBytes: 256 << 10, batchLines: 512, batchBytes: 1 << 20 };
/** Enough to keep every instance busy while the next lines are read. */
const BATCHES_IN_FLIGHT = 4;
/** How soon lines that were refused for want of room are tried again. */
const OVERLOADED_WAIT_MS = 20;
/** Lines yield to calls that somebody waits for. */
const PRIORITY_OF_LINES = PRIORITY_MAX;

interface Row {
  readonly line: number;
  readonly value: unknown;
}

export class LineScorer {
  readonly #context: DoorContext;
  readonly #options: CtrOptions;
  readonly #call: DoorCall;

  constructor(context: DoorContext, options: CtrOptions, call: DoorCall) {
    this.#context = context;
    this.#options = options;
    this.#call = call;
  }

  /** The answers to a body, as text; several lines at once. */
  answers(body: AsyncIterable<Uint8Array>): AsyncIterable<string> {
    return inOrder(lineBatches(body, LIMITS), (batch) => this.#answer(batch), BATCHES_IN_FLIGHT);
  }

  async #answer({ firstLine, lines }: LineBatch): Promise<string> {
    const answers: string[] = new Array(lines.length);
    const rows: Row[] = [];
    lines.forEach((text, i) => {
      const line = firstLine + i;
      try {
        if (typeof text !== 'string') throw text;
        rows.push({ line, value: JsonReader.parse(text, 'line').value });
      } catch (error) {
        answers[i] = failedLine(line, error);
      }
    });
    await this.#score(rows, (line, text) => {
      answers[line - firstLine] = text;
    });
    return answers.join('');
  }

  /** Scores rows together; when that is refused because of some of them, in halves until it is known which. */
  async #score(rows: readonly Row[], put: (line: number, text: string) => void): Promise<void> {
    if (rows.length === 0) return;
    try {
      const scores = await this.#predict(rows);
      rows.forEach(({ line }, i) => {
        put(line, scores[i]!);
      });
    } catch (error) {
      const { code } = CubeError.from(error);
      if (rows.length > 1 && (code === 'INVALID_ARGUMENT' || code === 'TOO_LARGE')) {
        const middle = rows.length >> 1;
        await this.#score(rows.slice(0, middle), put);
        await this.#score(rows.slice(middle), put);
      } else {
        for (const { line } of rows) put(line, failedLine(line, error));
      }
    }
  }

  async #predict(rows: readonly Row[]): Promise<string[]> {
    const { models, clock } = this.#context;
    const source = rows.length === 1 ? `line ${rows[0]!.line}` : 'lines';
    const values = rows.map(({ value }) => value);
    for (;;) {
      try {
        return await answer(this.#context, 'ctr', this.#call, () => {
          const bundle = bundleOf(models, this.#options);
          const json = JsonReader.of({ rows: values }, source).field('rows');
          return {
            bundle,
            rows: parseJsonRows(json, bundle.features, values.length),
            priority: this.#options.priority ?? PRIORITY_OF_LINES,
            answer: (prediction) => scoredLines(prediction, bundle),
          };
        });
      } catch (error) {
        if (CubeError.from(error).code !== 'OVERLOADED' || this.#call.signal.aborted) throw error;
        await clock.sleep(OVERLOADED_WAIT_MS);
      }
    }
  }
}

function scoredLines(prediction: Prediction, { manifest, plan }: LoadedBundle): string[] {
  const { output, outputNum, rowCount, degraded } = prediction;
  const end = `,"version":${JSON.stringify(manifest.version)}${degraded ? ',"degraded":true' : ''}}\n`;
  return Array.from(
    { length: rowCount },
    (_, row) => `{"probability":${output[row * outputNum + plan.clickColumn]}${end}`,
  );
}

function failedLine(line: number, error: unknown): string {
  const { code, message } = CubeError.from(error);
  return `${JSON.stringify({ line, code, error: message.slice(0, ERROR_TEXT_CHARS_MAX) })}\n`;
}
