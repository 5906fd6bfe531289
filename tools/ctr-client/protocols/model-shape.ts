/** What the model behind an endpoint takes: asked once, before rows are read (KServe's model metadata). */
import { CubeError } from '../../../lib/core/errors.ts';
import type { HttpEndpoint } from './http-endpoint.ts';

export interface ModelShape {
  readonly name: string;
  readonly slotNum: number;
  readonly denseNum: number;
  /** False when it was pruned without features.json: its inputs are then those of its unpruned graph. */
  readonly takesFeatures: boolean;
}

/**
 * @param model undefined: the first that is served
 * @throws CubeError UNAVAILABLE when nobody answers there, NOT_READY when no version is served, NOT_FOUND
 */
export async function askModelShape(endpoint: HttpEndpoint, model?: string): Promise<ModelShape> {
  const name = model ?? (await firstModel(endpoint));
  const metadata = await endpoint.get(`/v2/models/${encodeURIComponent(name)}`);
  const columns = new Map<string, number>();
  for (const input of metadata.field('inputs').items()) {
    const shape = input.field('shape').items({ min: 2, max: 2 });
    columns.set(input.field('name').string(), shape[1]!.integer(1));
  }
  const slotNum = columns.get('categorical');
  const all = [...columns.values()].reduce((sum, count) => sum + count, 0);
  const denseNum = slotNum === undefined ? 0 : all - slotNum;
  return { name, slotNum: slotNum ?? all, denseNum, takesFeatures: slotNum !== undefined };
}

async function firstModel(endpoint: HttpEndpoint): Promise<string> {
  const models = (await endpoint.get('/v2/models')).field('models').items();
  if (models.length === 0) throw new CubeError('NOT_FOUND', `${endpoint.url}: serves no model`);
  return models[0]!.string();
}
