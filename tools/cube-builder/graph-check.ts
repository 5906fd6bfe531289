/**
 * The graph of a version must load, and take what slots.json says it takes: a damaged or foreign model.onnx is refused
 * here, where somebody looks, and not by every serving process that follows the channel.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { SlotSpec } from '../../lib/core/slots.ts';
import { OnnxModel } from '../../lib/platform/onnx.ts';

interface GraphFile {
  readonly graph: Uint8Array;
  /** Data of the graph in other files, by their names. */
  readonly data: ReadonlyMap<string, Uint8Array> | undefined;
  /** What to call it in errors. */
  readonly source: string;
}

/** @throws CubeError naming the file `source`, and the first input or output that does not fit */
export async function checkGraph(file: GraphFile, spec: SlotSpec): Promise<void> {
  const { source } = file;
  const model = await load(file);
  const has = { input: names(model.inputs), output: names(model.outputs) };
  await model.release();
  const wanted: ['input' | 'output', string][] = spec.embeddings.map(({ input }) => [
    'input',
    input,
  ]);
  if (spec.features?.dense !== undefined) wanted.push(['input', spec.features.dense.input]);
  if (spec.features !== undefined) wanted.push(['output', spec.features.click.output]);
  for (const [kind, name] of wanted) {
    if (has[kind].includes(name)) continue;
    throw new CubeError(
      'CORRUPT',
      `${source} has no ${kind} ${JSON.stringify(name)}, which slots.json names (it has: ` +
        `${has[kind].join(', ')}); prune the model again`,
    );
  }
}

async function load({ graph, data, source }: GraphFile): Promise<OnnxModel> {
  try {
    return await OnnxModel.load(graph, { source, externalData: data ?? new Map() });
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `${message.replace(/\.$/, '')}; prune the model again`, {
      cause: error,
    });
  }
}

function names(ports: readonly { readonly name: string }[]): string[] {
  return ports.map(({ name }) => name);
}
