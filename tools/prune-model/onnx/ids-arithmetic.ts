/** Operators that compute with ids element by element, as ONNX defines them on integers. */
import type { KeyDtype, KeyOperator } from '../../../lib/core/key-expression.ts';
import { input, type Operator, type Step } from './ids-layout.ts';
import {
  broadcastAxes,
  broadcastTo,
  type Element,
  type IdsDtype,
  type IdsTensor,
  NotUnderstood,
} from './ids-tensor.ts';
import {
  ELEM_BOOL,
  ELEM_DOUBLE,
  ELEM_FLOAT,
  ELEM_INT32,
  ELEM_INT64,
  elemName,
} from './onnx-model.ts';

type Combine = (step: Step, operands: readonly Element[], dtype: KeyDtype) => Element;

/** @param result the dtype of the output; undefined: that of the operands */
function elementwise(combine: Combine, result?: KeyDtype): Operator {
  return (step) => {
    const operands = step.inputs.map((_, i) => input(step, i));
    const axes = broadcastAxes(operands.map((operand) => operand.axes));
    const dtype = integerType(step, operands);
    const parts = operands.map((operand) => broadcastTo(step.builder, operand, axes));
    return step.builder.tensor(result ?? dtype, axes, (i) =>
      combine(
        step,
        parts.map(({ elements }) => elements[i]!),
        dtype,
      ),
    );
  };
}

/** The one type of all operands. */
function integerType({ node }: Step, operands: readonly IdsTensor[]): KeyDtype {
  const types = new Set(operands.map(({ dtype }) => dtype));
  const [dtype] = types;
  if (dtype === undefined || types.size !== 1 || dtype === 'float32' || dtype === 'float64') {
    throw new NotUnderstood(`${node.opType} computes with ${[...types].join(' and ')}`);
  }
  return dtype;
}

function operator(op: KeyOperator): Operator {
  return elementwise(({ builder }, operands, dtype) =>
    operands.length === 1
      ? builder.operate(op, dtype, operands)
      : operands.slice(1).reduce((a, b) => builder.operate(op, dtype, [a, b]), operands[0]!),
  );
}

function nary(op: KeyOperator): Operator {
  const combine = operator(op);
  return (step) => (step.inputs.length === 1 ? input(step, 0) : combine(step));
}

/** A divisor must be a constant other than 0, for which there is no result. */
function division(op: (step: Step) => KeyOperator): Operator {
  return elementwise((step, [value, divisor], dtype) => {
    if (divisor?.op !== 'int' || divisor.value === 0n) {
      throw new NotUnderstood(`${step.node.opType} divides by what is not a constant above 0`);
    }
    return step.builder.operate(op(step), dtype, [value!, divisor]);
  });
}

const less: Combine = ({ builder }, operands) => builder.operate('less', 'bool', operands);
const greater: Combine = (step, operands, dtype) => less(step, [...operands].reverse(), dtype);

function negated(combine: Combine): Combine {
  return (step, operands, dtype) =>
    step.builder.operate('not', 'bool', [combine(step, operands, dtype)]);
}

function clip(step: Step): IdsTensor {
  const [value, low, high] = [input(step, 0), step.inputs[1], step.inputs[2]];
  if (step.node.attributes.has('min') || step.node.attributes.has('max')) {
    throw new NotUnderstood('Clip has limits that are floats');
  }
  const limited = (tensor: IdsTensor, limit: IdsTensor | undefined, op: KeyOperator): IdsTensor =>
    limit === undefined
      ? tensor
      : (operator(op)({ ...step, inputs: [tensor, limit] }) as IdsTensor);
  return limited(limited(value, low, 'max'), high, 'min');
}

function where(step: Step): IdsTensor {
  const operands = [0, 1, 2].map((i) => input(step, i));
  const axes = broadcastAxes(operands.map((operand) => operand.axes));
  const dtype = integerType(step, operands.slice(1));
  const [condition, yes, no] = operands.map((operand) => broadcastTo(step.builder, operand, axes));
  return step.builder.tensor(dtype, axes, (i) => {
    const test = condition!.elements[i]!;
    if (test.op === 'int') return (test.value !== 0n ? yes! : no!).elements[i]!;
    return step.builder.operate('where', dtype, [test, yes!.elements[i]!, no!.elements[i]!]);
  });
}

const CAST_TYPES: Readonly<Record<number, IdsDtype>> = {
  [ELEM_INT32]: 'int32',
  [ELEM_INT64]: 'int64',
  [ELEM_BOOL]: 'bool',
  [ELEM_FLOAT]: 'float32',
  [ELEM_DOUBLE]: 'float64',
};

function cast(step: Step): IdsTensor {
  const tensor = input(step, 0);
  const to = Number(step.node.attributes.get('to')?.int ?? 0n);
  const dtype = CAST_TYPES[to];
  if (dtype === tensor.dtype) return tensor;
  const isFloat = tensor.dtype.startsWith('float');
  if (dtype === undefined || dtype.startsWith('float') || (isFloat && dtype === 'bool')) {
    throw new NotUnderstood(`they are cast to ${elemName(to)}`);
  }
  // Every int32 and every bool is an int64 too.
  if (!isFloat && (dtype === 'int64' || (dtype === 'int32' && tensor.dtype === 'bool'))) {
    return { ...tensor, dtype };
  }
  return step.builder.tensor(dtype, tensor.axes, (i) =>
    step.builder.operate('cast', dtype as KeyDtype, [tensor.elements[i]!]),
  );
}

const isFmod = (step: Step): KeyOperator =>
  step.node.attributes.get('fmod')?.int === 1n ? 'fmod' : 'mod';

export const ARITHMETIC_OPERATORS: ReadonlyMap<string, Operator> = new Map<string, Operator>([
  ['Cast', cast],
  ['Add', operator('add')],
  ['Sub', operator('sub')],
  ['Mul', operator('mul')],
  ['Neg', operator('neg')],
  ['Abs', operator('abs')],
  ['Div', division(() => 'div')],
  ['Mod', division(isFmod)],
  ['Min', nary('min')],
  ['Max', nary('max')],
  ['Clip', clip],
  ['Where', where],
  [
    'Equal',
    elementwise(({ builder }, operands) => builder.operate('equal', 'bool', operands), 'bool'),
  ],
  ['Less', elementwise(less, 'bool')],
  ['Greater', elementwise(greater, 'bool')],
  ['LessOrEqual', elementwise(negated(greater), 'bool')],
  ['GreaterOrEqual', elementwise(negated(less), 'bool')],
  ['And', operator('and')],
  ['Or', operator('or')],
  ['Xor', operator('xor')],
  ['Not', operator('not')],
]);
