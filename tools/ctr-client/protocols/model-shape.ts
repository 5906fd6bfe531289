/** The inputs of the model at an endpoint: KServe's model metadata, and its features. */

import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import { type FeatureSpec, readFeatureSpec } from '../../../lib/core/slots.ts';
import type { HttpEndpoint } from './http-endpoint.ts';

export interface ModelShape {
  readonly name: string;
  readonly slotNum: number;
  readonly denseNum: number;
  /**
   * False if it was pruned without features.json: it then takes the inputs of its unpruned graph.
   */
  readonly takesFeatures: boolean;
}

/**
 * @param model undefined: the first model of the endpoint
 * @throws CubeError UNAVAILABLE without a response, NOT_READY without an active version, NOT_FOUND
 */
export async function fetchModelShape(endpoint: HttpEndpoint, model?: string): Promise<ModelShape> {
  const name = model ?? (await fetchFirstModel(endpoint));
  const metadata = await endpoint.get(`/v2/models/${encodeURIComponent(name)}`);
  const columns = new Map<string, number>();
  for (const input of metadata.field('inputs').items()) {
    const [, width] = input.field('shape').items({ min: 2, max: 2 });
    columns.set(input.field('name').string(), requireDefined(width, 'width').integer(1));
  }
  const slotNum = columns.get('categorical');
  const all = [...columns.values()].reduce((sum, count) => sum + count, 0);
  const denseNum = slotNum === undefined ? 0 : all - slotNum;
  return { name, slotNum: slotNum ?? all, denseNum, takesFeatures: slotNum !== undefined };
}

/**
 * @param name of a model that takes features
 * @throws CubeError that names --slots when the endpoint does not give them
 */
export async function fetchFeatures(endpoint: HttpEndpoint, name: string): Promise<FeatureSpec> {
  try {
    const json = await endpoint.get(`/v1/models/${encodeURIComponent(name)}/features`);
    return readFeatureSpec(json, ['model', 'version']);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(
      code,
      `cannot read the features of ${name}: ${message}; give its slots.json with --slots`,
      { cause: error },
    );
  }
}

async function fetchFirstModel(endpoint: HttpEndpoint): Promise<string> {
  const [first] = (await endpoint.get('/v2/models')).field('models').items();
  if (first === undefined) throw new CubeError('NOT_FOUND', `${endpoint.url} serves no model`);
  return first.string();
}
