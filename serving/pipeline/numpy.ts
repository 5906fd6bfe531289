/** NumPy's text form of arrays, in which Python clients send and read them. */
import { formatNumpyText, parseNumpyText } from '../../lib/core/numpy-text.ts';
import { fromByteTensor, type PipelineTensor, toByteTensor } from './pipeline-tensor.ts';

const VALUES_MAX = 1 << 25;

/**
 * Reads `array([[1., 2.]], dtype=float32)` or a bare nested list.
 * @param name of the value in errors
 * @throws CubeError INVALID_ARGUMENT with the offset, TOO_LARGE
 */
export function parseArray(text: string, name = 'value'): PipelineTensor {
  return fromByteTensor(parseNumpyText(text, name, VALUES_MAX));
}

/** @throws CubeError UNSUPPORTED for BF16, which NumPy does not know */
export function formatArray(tensor: PipelineTensor): string {
  return formatNumpyText(toByteTensor(tensor));
}
