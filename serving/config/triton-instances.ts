/** Reads Triton's instance groups: how many instances run on which execution provider. */
import {
  CPU_ONLY,
  listProviderOrders,
  type ProviderName,
  type ProviderOrder,
} from '../../lib/platform/onnx-providers.ts';
import type { TextMessage } from '../../proto/text-format.ts';
import type { IgnoredSetting } from './config-report.ts';
import { readEnum } from './triton-fields.ts';
import { INSTANCE_KINDS } from './triton-schema.ts';

const INSTANCES_MAX = 256;
const GPU_MAX = 63;

/**
 * @returns the execution providers of each instance; undefined without groups
 * @throws CubeError INVALID_ARGUMENT with file, line and column
 */
export function readInstances(
  root: TextMessage,
  ignored: IgnoredSetting[],
): readonly ProviderOrder[] | undefined {
  const groups = root.messages('instance_group');
  if (groups.length === 0) return undefined;
  const accelerators = readAccelerators(root, ignored);
  const instances = groups.flatMap((group) => {
    const count = group.integer('count', 1, INSTANCES_MAX) ?? 1;
    const orders = readGroup(group, accelerators, ignored);
    return orders.flatMap((order) => new Array<ProviderOrder>(count).fill(order));
  });
  if (instances.length <= INSTANCES_MAX) return instances;
  return root.failField('instance_group', `more than ${INSTANCES_MAX} instances`);
}

/** One order for each GPU of a group, each of which has as many instances as the group counts. */
function readGroup(
  group: TextMessage,
  accelerators: readonly ProviderName[],
  ignored: IgnoredSetting[],
): ProviderOrder[] {
  const kind = readEnum(group, 'kind', INSTANCE_KINDS);
  const gpus = group.integers('gpus', 0, GPU_MAX);
  if (kind === 'KIND_MODEL') {
    const reason = 'onnxruntime models have no KIND_MODEL; use KIND_CPU or KIND_GPU';
    group.failField('kind', `instance_group: ${reason}`);
  }
  if (kind === 'KIND_CPU') {
    if (gpus.length > 0) group.failField('gpus', 'instance_group: KIND_CPU has no gpus');
    return [CPU_ONLY];
  }
  const providers: ProviderName[] = [...accelerators, 'cuda'];
  if (kind === 'KIND_GPU') {
    if (gpus.length === 0) {
      const reason = 'without gpus, instances run on GPU 0; list gpus to use others';
      ignored.push({ setting: `${group.getFieldLocation('kind')} instance_group.kind`, reason });
    }
    return listProviderOrders(providers, gpus.length > 0 ? gpus : [0]);
  }
  return gpus.length === 0 ? [CPU_ONLY] : listProviderOrders([...providers, 'cpu'], gpus);
}

/** Providers that GPU instances try before CUDA. */
function readAccelerators(root: TextMessage, ignored: IgnoredSetting[]): ProviderName[] {
  const [settings] = root.messages('optimization')[0]?.messages('execution_accelerators') ?? [];
  const providers: ProviderName[] = [];
  for (const node of settings?.messages('gpu_execution_accelerator') ?? []) {
    const name = node.string('name') ?? '';
    if (name === 'tensorrt') providers.push('tensorrt');
    else if (name !== 'cuda') {
      const setting = `${node.location} gpu_execution_accelerator ${name}`;
      ignored.push({ setting, reason: 'onnxruntime has tensorrt and cuda' });
    }
  }
  return [...new Set(providers)];
}
