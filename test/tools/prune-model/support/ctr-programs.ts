/**
 * The CTR network of Paddle's own examples: lookups of one table, pooled or reshaped, beside dense
 * features, then fc layers.
 */
import {
  type AttributeValue,
  FP32,
  feedOp,
  fetchOp,
  holders,
  INT64,
  type ModelFiles,
  op,
  type ParameterContent,
  program,
  variable,
  wave,
} from './paddle-builder.ts';

export interface CtrOptions {
  readonly slots: number;
  readonly rows: number;
  readonly dim: number;
  readonly hidden: readonly number[];
  readonly dense?: number;
  /**
   * 1: sequences, sequence_pool, mul and elementwise_add; 2: ids of [batch, 1], reshape2 and
   * matmul_v2.
   */
  readonly style: 1 | 2;
  readonly lookup?: Readonly<Record<string, AttributeValue>>;
}

type Part = Uint8Array;

class Network {
  readonly vars: Part[] = [...holders];
  readonly ops: Part[] = [];
  readonly params: Record<string, ParameterContent> = {};

  parameter(name: string, dims: readonly number[], seed: number, scale: number): void {
    this.vars.push(variable({ name, dims, persistable: true }));
    const count = dims.reduce((product, dim) => product * dim, 1);
    this.params[name] = { dims, values: wave(count, seed, scale) };
  }

  value(name: string, dims: readonly number[], lodLevel = 0, type = FP32): void {
    this.vars.push(variable({ name, dims, lodLevel, type }));
  }

  /** @returns the name of the layer's output */
  fc(input: string, width: number, out: number, layer: number, style: 1 | 2): string {
    const [w, b] = [`fc_${layer}.w_0`, `fc_${layer}.b_0`];
    this.parameter(w, [width, out], layer + 3, 1.5 / Math.sqrt(width));
    this.parameter(b, [out], layer + 5, 0.1);
    const [product, sum, active] = [0, 1, 2].map((i) => `fc_${layer}.tmp_${i}`) as [
      string,
      string,
      string,
    ];
    for (const name of [product, sum, active]) this.value(name, [-1, out]);
    if (style === 1) {
      this.ops.push(
        op('mul', { X: input, Y: w }, { Out: product }, { x_num_col_dims: 1, y_num_col_dims: 1 }),
      );
    } else this.ops.push(op('matmul_v2', { X: input, Y: w }, { Out: product }, { trans_x: false }));
    this.ops.push(op('elementwise_add', { X: product, Y: b }, { Out: sum }, { axis: 1 }));
    return sum;
  }
}

/** Feeds dense_input, C1 .. Cn; fetches the softmax of two. */
export function buildCtrDnn(options: CtrOptions): ModelFiles {
  const { slots, rows, dim, hidden, dense = 13, style } = options;
  const net = new Network();
  const names = Array.from({ length: slots }, (_, i) => `C${i + 1}`);
  const feeds = ['dense_input', ...names];
  // As Paddle prepends them: the last column first.
  net.ops.push(...feeds.map(feedOp).reverse());
  net.value('dense_input', [-1, dense]);
  net.parameter('SparseFeatFactors', [rows, dim], 1, 1);
  const pooled = names.map((name, i) => lookUp(net, name, i, options));
  const width = slots * dim + dense;
  net.value('concat_0.tmp_0', [-1, width]);
  net.ops.push(
    op('concat', { X: [...pooled, 'dense_input'] }, { Out: 'concat_0.tmp_0' }, { axis: 1 }),
  );
  let [input, size] = ['concat_0.tmp_0', width];
  hidden.forEach((out, layer) => {
    const sum = net.fc(input, size, out, layer, style);
    input = `fc_${layer}.tmp_2`;
    net.ops.push(op('relu', { X: sum }, { Out: input }));
    size = out;
  });
  const last = net.fc(input, size, 2, hidden.length, style);
  const predict = `fc_${hidden.length}.tmp_2`;
  net.ops.push(op('softmax', { X: last }, { Out: predict }, { axis: -1 }), fetchOp(predict, 0));
  const version = style === 1 ? 0 : 2_004_001;
  return { program: program([{ vars: net.vars, ops: net.ops }], version), params: net.params };
}

function lookUp(net: Network, ids: string, i: number, { dim, style, lookup }: CtrOptions): string {
  const rows = `embedding_${i}.tmp_0`;
  if (style === 1) {
    const pooled = `sequence_pool_${i}.tmp_0`;
    net.value(ids, [-1, 1], 1, INT64);
    net.value(rows, [-1, dim], 1);
    net.value(pooled, [-1, dim]);
    net.value(`sequence_pool_${i}.tmp_1`, []);
    net.ops.push(
      op(
        'lookup_table',
        { W: 'SparseFeatFactors', Ids: ids },
        { Out: rows },
        {
          is_sparse: true,
          is_distributed: false,
          padding_idx: { long: -1 },
          ...lookup,
        },
      ),
      op(
        'sequence_pool',
        { X: rows },
        { Out: pooled, MaxIndex: `sequence_pool_${i}.tmp_1` },
        {
          pooltype: 'AVERAGE',
        },
      ),
    );
    return pooled;
  }
  const flat = `reshape2_${i}.tmp_0`;
  net.value(ids, [-1, 1], 0, INT64);
  net.value(rows, [-1, 1, dim]);
  net.value(flat, [-1, dim]);
  net.value(`reshape2_${i}.tmp_1`, [0, -1, 1, dim]);
  net.ops.push(
    op(
      'lookup_table_v2',
      { W: 'SparseFeatFactors', Ids: ids },
      { Out: rows },
      {
        padding_idx: { long: -1 },
        ...lookup,
      },
    ),
    op('reshape2', { X: rows }, { Out: flat, XShape: `reshape2_${i}.tmp_1` }, { shape: [-1, dim] }),
  );
  return flat;
}
