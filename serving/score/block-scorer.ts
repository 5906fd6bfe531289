/** Scores blocks of rows with one version, and formats a line of output per row. */
import { CubeError } from '../../lib/core/errors.ts';
import type {
  LabelledFeatureRows,
  LabelledKeyedRows,
  RowShape,
} from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseJsonRows } from '../../lib/core/json-rows.ts';
import { parseNonFiniteJson } from '../../lib/core/non-finite-json.ts';
import { parseTsvRows } from '../../lib/core/tsv-rows.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { Predictor } from '../engine/predictor.ts';
import type { RowBlock } from './row-blocks.ts';

/** No request waits for this long; it bounds a run whose model workers do not answer. */
const DEADLINE_MS = 600_000;

export const HEADER = 'row\tlabel\tprobability\tversion\n';

export class BlockScorer {
  readonly #bundle: LoadedBundle;
  readonly #inputName: string;
  readonly #predictor = new Predictor();

  constructor(bundle: LoadedBundle, inputName: string) {
    this.#bundle = bundle;
    this.#inputName = inputName;
  }

  /**
   * @returns a line per row: row (from 1), label, probability, version
   * @throws CubeError naming the line of a row that does not fit the model
   */
  score(block: RowBlock): Promise<string> {
    return withLineErrors(block, this.#inputName, (part) => this.#scorePart(part));
  }

  async #scorePart(block: RowBlock): Promise<string> {
    const bundle = this.#bundle;
    const rows = parseBlock(block, bundle.features);
    const deadlineMs = systemClock.nowMs() + DEADLINE_MS;
    const prediction = await this.#predictor.predict(bundle, rows, { deadlineMs });
    const { clickOutput, clickWidth, rowCount } = prediction;
    let text = '';
    for (let row = 0; row < rowCount; row++) {
      const label = rows.labels[row] ?? Number.NaN;
      const probability = clickOutput[row * clickWidth + bundle.plan.clickColumn];
      const labelText = Number.isNaN(label) ? '' : label;
      const number = block.firstLine + row;
      text += `${number}\t${labelText}\t${probability}\t${prediction.version}\n`;
    }
    return text;
  }
}

/** Checks that rows fit a model. @throws CubeError naming the line */
export async function checkBlock(
  block: RowBlock,
  shape: RowShape,
  inputName: string,
): Promise<void> {
  await withLineErrors(block, inputName, async (part) => {
    parseBlock(part, shape);
    return '';
  });
}

function parseBlock(
  { lines, form, firstLine }: RowBlock,
  shape: RowShape,
): LabelledFeatureRows | LabelledKeyedRows {
  if (form === 'tsv') return parseTsvRows(`${lines.join('\n')}\n`, shape, lines.length);
  const values = lines.map((line, i) => {
    return JsonReader.parse(line, `line ${firstLine + i}`, parseNonFiniteJson).value;
  });
  return parseJsonRows(JsonReader.of(values, 'rows'), shape, values.length);
}

/**
 * Rows that do not fit make a request fail as a whole: halves of it are tried until a single row
 * fails, whose line the error then names.
 */
async function withLineErrors(
  block: RowBlock,
  inputName: string,
  work: (part: RowBlock) => Promise<string>,
): Promise<string> {
  try {
    return await work(block);
  } catch (caught) {
    const error = CubeError.from(caught);
    if (error.code !== 'INVALID_ARGUMENT' && error.code !== 'TOO_LARGE') throw error;
    const { firstLine, lines, form } = block;
    if (lines.length === 1) {
      const what = error.message.replace(/^(row 1|rows\[0\]|line \d+)[,:.]? ?/, '');
      throw new CubeError(error.code, `${inputName}, line ${firstLine}: ${what}`);
    }
    const middle = lines.length >> 1;
    const first = { firstLine, lines: lines.slice(0, middle), form };
    const second = { firstLine: firstLine + middle, lines: lines.slice(middle), form };
    const text = await withLineErrors(first, inputName, work);
    return text + (await withLineErrors(second, inputName, work));
  }
}
