/**
 * Execution providers of onnxruntime: which processor runs the operators of a graph. A graph has a
 * list of them; an operator runs on the first one that has it, and on the CPU otherwise.
 */
import { CubeError } from '../core/errors.ts';

/** The names that settings and onnxruntime use. */
export const PROVIDER_NAMES = ['cpu', 'cuda', 'tensorrt', 'webgpu', 'dml', 'coreml'] as const;
export type ProviderName = (typeof PROVIDER_NAMES)[number];

/** Providers of which a machine has several devices, with numbers from 0. */
const WITH_DEVICES: readonly ProviderName[] = ['cuda', 'tensorrt', 'dml'];

export interface Provider {
  readonly name: ProviderName;
  /** The number of the device; only for providers with devices. */
  readonly device?: number;
}

/** The providers of one session, the preferred first. */
export type ProviderOrder = readonly Provider[];

export const CPU_ONLY: ProviderOrder = [{ name: 'cpu' }];

/** A provider that cannot run here, and why. */
export interface MissingProvider {
  readonly provider: Provider;
  readonly reason: string;
}

const CUDA_INSTALL =
  'run "node node_modules/onnxruntime-node/script/install.js --onnxruntime-node-install=cuda12" ' +
  'in the folder where serving is installed, then install CUDA 12 and cuDNN 9';

/** What to install, by provider. */
const REMEDIES: Readonly<Record<ProviderName, string>> = {
  cpu: 'install onnxruntime-node again',
  cuda: CUDA_INSTALL,
  tensorrt: `${CUDA_INSTALL}, and TensorRT 10`,
  webgpu: 'install a graphics driver with Vulkan (libvulkan1 and the driver of the GPU)',
  dml: 'it needs Windows',
  coreml: 'it needs macOS',
};

/**
 * One order for each device; one in all without devices.
 * @throws CubeError INVALID_ARGUMENT naming what contradicts
 */
export function listProviderOrders(
  names: readonly ProviderName[],
  devices: readonly number[] = [],
): ProviderOrder[] {
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) reject(`provider ${twice} is listed twice`);
  const cpu = names.indexOf('cpu');
  if (cpu >= 0 && cpu < names.length - 1) {
    reject(`list cpu last: it has every operator, so that ${names[cpu + 1]} after it gets none`);
  }
  const hasDevices = (name: ProviderName): boolean => WITH_DEVICES.includes(name);
  if (devices.length === 0) return [names.map((name) => ({ name }))];
  if (!names.some(hasDevices)) {
    reject(`devices need a provider with devices (${WITH_DEVICES.join(', ')})`);
  }
  return devices.map((device) =>
    names.map((name) => (hasDevices(name) ? { name, device } : { name })),
  );
}

/** cuda:1, or cuda without a device. */
export function formatProvider({ name, device }: Provider): string {
  return device === undefined ? name : `${name}:${device}`;
}

/**
 * Removes providers that cannot run here, where `cpu` is listed to take over.
 * @param findProblem why a provider cannot run; undefined: it can
 * @throws CubeError UNSUPPORTED with the reason and what to install
 */
export async function chooseProviders(
  order: ProviderOrder,
  findProblem: (provider: Provider) => Promise<string | undefined>,
): Promise<{ readonly order: ProviderOrder; readonly missing: readonly MissingProvider[] }> {
  const missing: MissingProvider[] = [];
  for (const provider of order) {
    const problem = provider.name === 'cpu' ? undefined : await findProblem(provider);
    if (problem === undefined) continue;
    missing.push({ provider, reason: `${problem}; to use it, ${REMEDIES[provider.name]}` });
  }
  const [first] = missing;
  if (first !== undefined && order.every(({ name }) => name !== 'cpu')) {
    throw new CubeError(
      'UNSUPPORTED',
      `execution provider ${formatProvider(first.provider)} is not available: ${first.reason}; ` +
        'or list cpu after it',
    );
  }
  const isMissing = (one: Provider): boolean => missing.some(({ provider }) => provider === one);
  return { order: order.filter((provider) => !isMissing(provider)), missing };
}

function reject(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
