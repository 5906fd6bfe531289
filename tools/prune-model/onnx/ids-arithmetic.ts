/** Operators that compute with ids element by element, as ONNX defines them for integers. */
import type { KeyDtype, KeyOperator } from '../../../lib/core/key-expression.ts';
import { getInput, type IdsOperator, type OperatorCall } from './ids-layout.ts';
import {
  broadcastAxes,
  broadcastTo,
  type IdsDtype,
  type IdsElement,
  type IdsTensor,
  UnsupportedIdsError,
} from './ids-tensor.ts';
import {
  ELEM_BOOL,
  ELEM_DOUBLE,
  ELEM_FLOAT,
  ELEM_INT32,
  ELEM_INT64,
  getElementTypeName,
  getIntAttribute,
} from './onnx-model.ts';

type ElementFunction = (
  call: OperatorCall,
  operands: readonly IdsElement[],
  dtype: KeyDtype,
) => IdsElement;

/** @param result dtype of the output; default: the dtype of the operands */
function elementwise(combine: ElementFunction, result?: KeyDtype): IdsOperator {
  return (call) => {
    const operands = call.inputs.map((_, i) => getInput(call, i));
    const axes = broadcastAxes(operands.map((operand) => operand.axes));
    const dtype = requireIntegerType(call, operands);
    const parts = operands.map((operand) => broadcastTo(call.builder, operand, axes));
    return call.builder.tensor(result ?? dtype, axes, (i) =>
      combine(
        call,
        parts.map(({ elements }) => elements[i]!),
        dtype,
      ),
    );
  };
}

/** The common type of all operands. */
function requireIntegerType({ node }: OperatorCall, operands: readonly IdsTensor[]): KeyDtype {
  const types = new Set(operands.map(({ dtype }) => dtype));
  const [dtype] = types;
  if (dtype === undefined || types.size !== 1 || dtype === 'float32' || dtype === 'float64') {
    throw new UnsupportedIdsError(
      `${node.opType} computes with ${[...types].join(' and ')}; only integers of one type ` +
        'are supported',
    );
  }
  return dtype;
}

function elementwiseOperator(op: KeyOperator): IdsOperator {
  return elementwise(({ builder }, operands, dtype) =>
    operands.length === 1
      ? builder.operate(op, dtype, operands)
      : operands.reduce((a, b) => builder.operate(op, dtype, [a, b])),
  );
}

function variadicOperator(op: KeyOperator): IdsOperator {
  const combine = elementwiseOperator(op);
  return (call) => (call.inputs.length === 1 ? getInput(call, 0) : combine(call));
}

/** The divisor must be a constant and not 0. */
function division(op: (call: OperatorCall) => KeyOperator): IdsOperator {
  return elementwise((call, [value, divisor], dtype) => {
    if (value === undefined || divisor?.op !== 'int' || divisor.value === 0n) {
      throw new UnsupportedIdsError(
        `${call.node.opType} divides by 0 or by a value that is not constant`,
      );
    }
    return call.builder.operate(op(call), dtype, [value, divisor]);
  });
}

const less: ElementFunction = ({ builder }, operands) => builder.operate('less', 'bool', operands);
const greater: ElementFunction = (call, operands, dtype) =>
  less(call, [...operands].reverse(), dtype);

function negated(combine: ElementFunction): ElementFunction {
  return (call, operands, dtype) =>
    call.builder.operate('not', 'bool', [combine(call, operands, dtype)]);
}

function clip(call: OperatorCall): IdsTensor {
  const [value, low, high] = [getInput(call, 0), call.inputs[1], call.inputs[2]];
  if (call.node.attributes.has('min') || call.node.attributes.has('max')) {
    throw new UnsupportedIdsError('Clip has float limits; only integers are supported');
  }
  const limited = (tensor: IdsTensor, limit: IdsTensor | undefined, op: KeyOperator): IdsTensor =>
    limit === undefined
      ? tensor
      : (elementwiseOperator(op)({ ...call, inputs: [tensor, limit] }) as IdsTensor);
  return limited(limited(value, low, 'max'), high, 'min');
}

function where(call: OperatorCall): IdsTensor {
  const operands = [getInput(call, 0), getInput(call, 1), getInput(call, 2)] as const;
  const axes = broadcastAxes(operands.map((operand) => operand.axes));
  const dtype = requireIntegerType(call, operands.slice(1));
  const broadcast = (operand: IdsTensor): IdsTensor => broadcastTo(call.builder, operand, axes);
  const condition = broadcast(operands[0]);
  const yes = broadcast(operands[1]);
  const no = broadcast(operands[2]);
  return call.builder.tensor(dtype, axes, (i) => {
    const test = condition.elements[i]!;
    if (test.op === 'int') return (test.value !== 0n ? yes : no).elements[i]!;
    return call.builder.operate('where', dtype, [test, yes.elements[i]!, no.elements[i]!]);
  });
}

const CAST_TYPES: Readonly<Record<number, IdsDtype>> = {
  [ELEM_INT32]: 'int32',
  [ELEM_INT64]: 'int64',
  [ELEM_BOOL]: 'bool',
  [ELEM_FLOAT]: 'float32',
  [ELEM_DOUBLE]: 'float64',
};

function cast(call: OperatorCall): IdsTensor {
  const tensor = getInput(call, 0);
  const to = getIntAttribute(call.node, 'to', 0);
  const dtype = CAST_TYPES[to];
  if (dtype === tensor.dtype) return tensor;
  const isFloat = tensor.dtype.startsWith('float');
  if (dtype === undefined || dtype.startsWith('float') || (isFloat && dtype === 'bool')) {
    throw new UnsupportedIdsError(
      `Cast turns them into ${getElementTypeName(to)}, which is not supported`,
    );
  }
  // Every int32 and bool value is also an int64.
  if (!isFloat && (dtype === 'int64' || (dtype === 'int32' && tensor.dtype === 'bool'))) {
    return { ...tensor, dtype };
  }
  return call.builder.tensor(dtype, tensor.axes, (i) =>
    call.builder.operate('cast', dtype as KeyDtype, [tensor.elements[i]!]),
  );
}

const getModOperator = (call: OperatorCall): KeyOperator =>
  getIntAttribute(call.node, 'fmod', 0) === 1 ? 'fmod' : 'mod';

export const ARITHMETIC_OPERATORS: ReadonlyMap<string, IdsOperator> = new Map<string, IdsOperator>([
  ['Cast', cast],
  ['Add', elementwiseOperator('add')],
  ['Sub', elementwiseOperator('sub')],
  ['Mul', elementwiseOperator('mul')],
  ['Neg', elementwiseOperator('neg')],
  ['Abs', elementwiseOperator('abs')],
  ['Div', division(() => 'div')],
  ['Mod', division(getModOperator)],
  ['Min', variadicOperator('min')],
  ['Max', variadicOperator('max')],
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
  ['And', elementwiseOperator('and')],
  ['Or', elementwiseOperator('or')],
  ['Xor', elementwiseOperator('xor')],
  ['Not', elementwiseOperator('not')],
]);
