import assert from 'node:assert/strict';
import { CubeError } from '../../lib/core/errors.ts';

/** The code of the CubeError that `action` throws, or "no error". */
export function getErrorCode(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return error.code;
  }
  return 'no error';
}
