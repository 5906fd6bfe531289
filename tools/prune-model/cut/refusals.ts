/** Errors about valid models that cannot be pruned or verified. Nothing is written for them. */
import { CubeError } from '../../../lib/core/errors.ts';

export function refuseModel(reason: string): never {
  throw new CubeError('UNSUPPORTED', `cannot prune this model: ${reason}`);
}

/** @param cause the error that stopped the verification, if one did */
export function notVerifiedError(reason: string, cause?: unknown): CubeError {
  return new CubeError(
    'UNSUPPORTED',
    `not verified: ${reason}; use --verify 0 to skip the verification`,
    {
      cause,
    },
  );
}
