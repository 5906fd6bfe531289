/**
 * The CTR door's bodies: raw Criteo rows in (`text/tab-separated-values` or JSON), click probabilities out.
 * Drawn in docs/wire/serving.md.
 */
import { CubeError } from '../lib/core/errors.ts';
import { parseJsonRows, parseTsvRows, type RowColumns } from '../lib/core/features.ts';
import { JsonReader } from '../lib/core/json.ts';
import type { LoadedBundle } from './bundle.ts';
import type { Prediction } from './predictor.ts';

const TSV = 'text/tab-separated-values';
const JSON_TYPE = 'application/json';

/** @param contentType the header, parameters and all */
export function readCtrRows(
  text: string,
  contentType: string | undefined,
  { features }: LoadedBundle,
  rowsMax: number,
): RowColumns {
  const type = contentType?.split(';')[0]?.trim().toLowerCase() ?? '';
  if (type === TSV) return parseTsvRows(text, features, rowsMax);
  if (type === JSON_TYPE) {
    return parseJsonRows(JsonReader.parse(text, 'body').field('rows'), features, rowsMax);
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    `Content-Type ${JSON.stringify(type)} is not understood: send rows as ${TSV} or {"rows": [...]} as ${JSON_TYPE}`,
  );
}

export function ctrResponse(prediction: Prediction, { manifest, plan }: LoadedBundle): object {
  const { output, outputNum, rowCount, version, unseen, unavailable, degraded } = prediction;
  const probabilities = new Array<number>(rowCount);
  for (let row = 0; row < rowCount; row++) {
    probabilities[row] = output[row * outputNum + plan.clickColumn]!;
  }
  return {
    model: manifest.bundle,
    version: manifest.version,
    tables_version: version,
    probabilities,
    unseen,
    unavailable,
    degraded,
  };
}
