/**
 * Checks that the graph of a version loads and has the inputs and outputs that slots.json names.
 * A damaged or wrong model.onnx fails the build instead of every serving process.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { SlotSpec } from '../../lib/core/slots.ts';
import { OnnxModel } from '../../lib/platform/onnx.ts';

interface GraphFile {
  readonly graph: Uint8Array;
  /** External data files of the graph, by name. */
  readonly data: ReadonlyMap<string, Uint8Array> | undefined;
  /** Name of the file in errors. */
  readonly source: string;
}

/** @throws CubeError with `source` and the first missing input or output */
export async function checkGraph(file: GraphFile, spec: SlotSpec): Promise<void> {
  const { source } = file;
  const model = await loadGraph(file);
  const has = { input: getNames(model.inputs), output: getNames(model.outputs) };
  await model.release();
  const required: ['input' | 'output', string][] = spec.embeddings.map(({ input }) => [
    'input',
    input,
  ]);
  if (spec.features?.dense !== undefined) required.push(['input', spec.features.dense.input]);
  if (spec.features !== undefined) required.push(['output', spec.features.click.output]);
  for (const [kind, name] of required) {
    if (has[kind].includes(name)) continue;
    throw new CubeError(
      'CORRUPT',
      `${source} has no ${kind} ${JSON.stringify(name)}, which slots.json requires (it has: ` +
        `${has[kind].join(', ')}); prune the model again`,
    );
  }
}

async function loadGraph({ graph, data, source }: GraphFile): Promise<OnnxModel> {
  try {
    return await OnnxModel.load(graph, { source, externalData: data ?? new Map() });
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `${message.replace(/\.$/, '')}; prune the model again`, {
      cause: error,
    });
  }
}

function getNames(ports: readonly { readonly name: string }[]): string[] {
  return ports.map(({ name }) => name);
}
