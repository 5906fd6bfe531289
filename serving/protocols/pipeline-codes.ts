/** What the answers of pipelines have in common, whatever their messages are. */
import type { ErrorCode } from '../../lib/core/errors.ts';
import { PIPELINE_ERROR } from '../../proto/pipeline.ts';

/** The header and trailer with the versions that took part: `model=version,…`. */
export const VERSIONS_KEY = 'hypercube-versions';

const CODES: ReadonlyMap<number, ErrorCode> = new Map([
  [PIPELINE_ERROR.NOT_IMPLEMENTED, 'UNSUPPORTED'],
  [PIPELINE_ERROR.CLOSED, 'STOPPING'],
  [PIPELINE_ERROR.NO_SERVICE, 'NOT_FOUND'],
  [PIPELINE_ERROR.INPUT_PARAMS_ERROR, 'INVALID_ARGUMENT'],
  [PIPELINE_ERROR.TIMEOUT, 'DEADLINE_EXCEEDED'],
  [PIPELINE_ERROR.CLIENT_ERROR, 'UNAVAILABLE'],
]);

/** Codes of users; they are answers, not failures of the pipeline. */
export function isProductError(errNo: number): boolean {
  return errNo !== 0 && errNo < PIPELINE_ERROR.NOT_IMPLEMENTED;
}

export function toErrorCode(errNo: number): ErrorCode {
  return CODES.get(errNo) ?? 'INTERNAL';
}

export function formatVersions(versions: Readonly<Record<string, string>>): string {
  return Object.entries(versions)
    .map(([model, version]) => `${model}=${version}`)
    .join(',');
}
