/**
 * The devices of Paddle Serving as execution providers of onnxruntime. The CPU takes over where GPU
 * providers are not installed, so that a configuration serves everywhere.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { ModelSettings } from './settings.ts';

type Devices = Pick<ModelSettings, 'provider' | 'devices'>;

const GPU_MAX = 63;
const BY_DEVICES = -1;
const GPU = 1;
const TENSORRT = 2;

export function toGpuSettings(devices: readonly number[], usesTensorRt: boolean): Devices {
  const provider = usesTensorRt
    ? (['tensorrt', 'cuda', 'cpu'] as const)
    : (['cuda', 'cpu'] as const);
  return { provider, ...(devices.length > 0 && { devices }) };
}

/**
 * @param type the number of device_type; -1: a GPU if `devices` names one
 * @param devices numbers of GPUs, separated by commas
 * @param place names the fields in errors
 * @throws CubeError INVALID_ARGUMENT
 */
export function readPaddleDevices(type: number, devices: string, place: string): Devices {
  const isGpu = type === GPU || type === TENSORRT || (type === BY_DEVICES && devices !== '');
  if (!isGpu) return {};
  const numbers = devices === '' ? [] : devices.split(',').map((text) => text.trim());
  const wrong = numbers.find((text) => !/^\d{1,2}$/.test(text) || Number(text) > GPU_MAX);
  if (wrong !== undefined) {
    const text = `${place}: devices: expected numbers in 0..${GPU_MAX}, got "${wrong}"`;
    throw new CubeError('INVALID_ARGUMENT', text);
  }
  return toGpuSettings(numbers.map(Number), type === TENSORRT);
}
