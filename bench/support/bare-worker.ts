/**
 * The least that a graph in another thread costs: onnxruntime, one message with the input to the
 * thread, and one with the output and the input's memory back.
 */
import { parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads';
import { OnnxModel } from '../../lib/platform/onnx.ts';

export interface BareWorkerData {
  readonly model: Uint8Array;
  readonly dims: readonly number[];
}

if (parentPort === null) throw new Error('bare-worker runs as a worker thread');
const port = parentPort;
const { model, dims } = workerData as BareWorkerData;
const loaded = await OnnxModel.load(model);

const waiting: ArrayBuffer[] = [];
let isBusy = false;

async function work(first: ArrayBuffer): Promise<void> {
  isBusy = true;
  let input: ArrayBuffer | undefined = first;
  while (input !== undefined) {
    const data = new Float32Array(input);
    const { y } = await loaded.run({ x: { dtype: 'float32', data, dims } });
    port.postMessage({ input, output: y?.data }, [input]);
    input = waiting.shift() ?? (receiveMessageOnPort(port)?.message as ArrayBuffer | undefined);
  }
  isBusy = false;
}

port.on('message', (message: ArrayBuffer | 'stop') => {
  if (message === 'stop') port.close();
  else if (isBusy) waiting.push(message);
  else void work(message);
});
port.postMessage('ready');
