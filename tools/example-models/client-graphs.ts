/**
 * The models that Triton's example clients send requests to. Names, types and shapes are those of
 * the public example repository of Triton.
 */
import { ExampleGraph, INT8, INT32, STRING } from './graph.ts';

const WIDTH = 16;

/** OUTPUT0 is INPUT0 + INPUT1, OUTPUT1 is INPUT0 - INPUT1, computed with 32-bit integers. */
function encodeSumAndDifference(graphName: string, elemType: number): Uint8Array {
  const graph = new ExampleGraph();
  const operands = ['INPUT0', 'INPUT1'].map((name) => {
    graph.addInput(name, elemType, ['batch', WIDTH]);
    return elemType === INT32
      ? name
      : graph.addNode('Cast', [name], `${name}_integers`, { to: INT32 });
  });
  for (const [i, opType] of ['Add', 'Sub'].entries()) {
    const output = graph.addOutput(`OUTPUT${i}`, elemType, ['batch', WIDTH]);
    if (elemType === INT32) graph.addNode(opType, operands, output);
    else {
      const result = graph.addNode(opType, operands, `${output}_integers`);
      graph.addNode('Cast', [result], output, { to: elemType });
    }
  }
  return graph.encode(graphName);
}

function encodeIdentity(graphName: string): Uint8Array {
  const graph = new ExampleGraph();
  graph.addInput('INPUT0', STRING, ['batch', 'length']);
  graph.addOutput('OUTPUT0', STRING, ['batch', 'length']);
  graph.addNode('Identity', ['INPUT0'], 'OUTPUT0');
  return graph.encode(graphName);
}

/** @returns the graph of each model */
export function encodeClientGraphs(): ReadonlyMap<string, Uint8Array> {
  return new Map([
    ['simple', encodeSumAndDifference('simple', INT32)],
    ['simple_int8', encodeSumAndDifference('simple_int8', INT8)],
    ['simple_string', encodeSumAndDifference('simple_string', STRING)],
    ['simple_identity', encodeIdentity('simple_identity')],
  ]);
}
