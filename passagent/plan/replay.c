// A plan as a table of steps, and the loop over it: inputs are compared with what the plan is for, outputs are
// allocated, steps run. No Python runs but torch's own functions: operators, fills and copies that are not contiguous.
// Built and told what a plan is by replay.py.
#include "host.h"
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum step_kind { LAUNCH, FILL, COPY, ADDRESS, CALL };
enum { NOWHERE = -1 };

// A number that a step is given: as it is, or (slot >= 0) plus where the tensor of the slot lies at this call.
// Slots are counted through the inputs, then the outputs, then what operators of torch return.
// Where there is a map, the kernel is given that, with the number as its address.
struct cell {
  uint64_t value;
  int32_t slot, map;
};

// What CUDA's driver makes a tensor map of, beside the address; dimensions begin with the innermost.
struct map {
  int32_t kind, rank, swizzle, fill, small;
  uint32_t box[5];
  uint64_t sizes[5], strides[5];  // strides: in bytes, from the second dimension on
};

// A tensor map as a kernel is given it, and the address in it.
struct encoded {
  _Alignas(64) uint64_t words[16];
  uint64_t address;
};

// A tensor that a step or the caller is given: that of a slot, or `fixed`; with a `view` what `look` makes of both.
struct object {
  PyObject *fixed, *view;
  int32_t slot, unused;
};

struct step {
  int32_t kind;
  uint32_t first, count;  // its cells; of CALL its objects
  uint32_t sizes[SIZES];  // of a launch
  void* function;         // LAUNCH: machine code; CALL: a callable of Python
  uint64_t size;          // FILL, COPY: bytes; CALL: how many tensors it returns, in a tuple
  uint64_t pattern;       // FILL: what 8 bytes of it are; CALL: the slot of the first of these tensors
  const char* name;
};

// What an argument must be. A constant (`equal`) must have its type and value.
struct input {
  PyObject* equal;
  int32_t kind, device, ndim, same, slot;  // kind: kDLCPU or kDLCUDA; same: the argument that must lie at the same place, or -1
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  uint32_t alignment;
  int64_t *shape, *stride;
};

struct program {
  PyMethodDef method;
  PyObject *explain, *look, *empty, *keep;  // keep: all that the tables refer to, and they themselves
  int32_t cpu, device, running, many;       // many: the results are a tuple, even if it is one
  uint32_t inputs, slots, outputs, computed, cells, steps, objects, results, maps;
  struct input* input;
  PyObject* (*made)[3];  // size, stride and dtype of each output
  struct cell* cell;
  struct object* object;  // the results are the last
  struct step* step;
  struct map* map;
  // of the running call
  uint64_t *at, *values;
  void** parameters;
  PyObject** tensor;
  struct encoded* encoded;  // of each map
};

static const char capsule[] = "passagent.replay";
static const struct program* running;
static const struct step* launched;  // on the CPU, last

// Whether an argument is what the plan is for; where it lies is noted.
static int fits(struct program* p, const struct input* in, PyObject* object) {
  if (in->equal != NULL) {
    if (object == in->equal) return 1;
    if (object->type != in->equal->type) return 0;
    if (object->type == (void*)PyFloat_Type) {  // bit by bit: nan is nan, and -0.0 is another constant than 0.0
      double given = PyFloat_AsDouble(object), wanted = PyFloat_AsDouble(in->equal);
      return memcmp(&given, &wanted, sizeof given) == 0;
    }
    int same = PyObject_RichCompareBool(object, in->equal, 2);
    if (same < 0) PyErr_Clear();
    return same == 1;
  }
  if (object->type != host.tensor_type && !PyType_IsSubtype(object->type, host.tensor_type)) return 0;
  struct tensor t;
  if (host.torch->tensor_of(object, &t) != 0) { PyErr_Clear(); return 0; }
  uint64_t start = (uint64_t)t.data + t.byte_offset;
  p->at[in->slot] = start;
  p->tensor[in->slot] = object;
  if (t.device.type != in->kind || t.device.id != in->device || t.ndim != in->ndim) return 0;
  if (t.dtype.code != in->dtype.code || t.dtype.bits != in->dtype.bits) return 0;
  int empty = 0, right = start % in->alignment == 0;
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] != in->shape[i]) return 0;
    if (t.shape[i] == 0) empty = 1;
    if (t.shape[i] > 1 && t.strides != NULL && t.strides[i] != in->stride[i]) right = 0;
  }
  return (right || empty) && (in->same < 0 || p->at[p->input[in->same].slot] == start);
}

// The arguments are read; where one does not fit, Python says why (and raises), or that it does.
static int read_inputs(struct program* p, PyObject* const* args, intptr_t count, PyObject* names) {
  int right = names == NULL && count == (intptr_t)p->inputs;
  for (uint32_t i = 0; right && i < p->inputs; ++i) right = fits(p, &p->input[i], args[i]);
  if (right) return 1;
  PyObject* said = PyObject_Vectorcall(p->explain, args, (size_t)count, names);
  if (said != NULL) {
    Py_DecRef(said);
    PyErr_Format(PyExc_TypeError, "the arguments are not what the plan is for");
  }
  return 0;
}

// A new reference to a tensor.
static PyObject* tensor_for(const struct program* p, const struct object* o) {
  PyObject* base = o->slot == NOWHERE ? o->fixed : p->tensor[o->slot];
  if (o->view == NULL) {
    Py_IncRef(base);
    return base;
  }
  PyObject* args[2] = {base, o->view};
  return PyObject_Vectorcall(p->look, args, 2, NULL);
}

static int fill(const struct program* p, const struct step* s, uint64_t target, void* stream) {
  uint8_t byte = (uint8_t)s->pattern;
  uint32_t word = (uint32_t)s->pattern;
  if (p->cpu) {
    unsigned char* to = (unsigned char*)target;
    if (s->pattern == byte * 0x0101010101010101u) {
      memset(to, byte, s->size);
    } else {
      uint64_t done = s->size < 8 ? s->size : 8;
      memcpy(to, &s->pattern, done);
      while (done < s->size) {  // what is filled is copied behind itself
        uint64_t more = done < s->size - done ? done : s->size - done;
        memcpy(to + done, to, more);
        done += more;
      }
    }
    return 1;
  }
  if (s->pattern == byte * 0x0101010101010101u) return succeeded(host.fill(target, byte, s->size, stream), s->name);
  return succeeded(host.fill_words(target, word, s->size / 4, stream), s->name);
}

static int copy(const struct program* p, const struct step* s, uint64_t target, uint64_t source, void* stream) {
  if (!p->cpu) return succeeded(host.copy(target, source, s->size, stream), s->name);
  memmove((void*)target, (const void*)source, s->size);
  return 1;
}

// An address is a value of the device's own memory: as two words that are filled, it may be captured in a graph.
static int put(const struct program* p, const struct step* s, uint64_t target, uint64_t address, void* stream) {
  if (p->cpu) {
    memcpy((void*)target, &address, sizeof address);
    return 1;
  }
  return succeeded(host.fill_words(target, (uint32_t)address, 1, stream), s->name) &&
         succeeded(host.fill_words(target + 4, (uint32_t)(address >> 32), 1, stream), s->name);
}

// Make a kernel's tensor map unless it is that of this address. 0 with an error set if the driver cannot.
static int encode(const struct program* p, const struct step* s, int32_t number, uint64_t address) {
  static const uint32_t every[5] = {1, 1, 1, 1, 1};
  enum { NOT_INTERLEAVED = 0, PROMOTE_TO_128_BYTES = 2 };
  const struct map* m = &p->map[number];
  struct encoded* e = &p->encoded[number];
  if (e->address == address) return 1;
  e->address = 0;
  int code = host.encode(e->words, m->kind, (uint32_t)m->rank, (void*)address, m->sizes, m->strides, m->box, every,
                         NOT_INTERLEAVED, m->swizzle, PROMOTE_TO_128_BYTES, m->fill);
  if (!succeeded(code, s->name)) return 0;
  if (m->small) e->words[1] &= ~(1ull << 21);
  e->address = address;
  return 1;
}

// What a call returned is held until the replay ends.
static int keep_results(struct program* p, const struct step* s, PyObject* results) {
  for (uint32_t i = 0; i < s->size; ++i) {
    struct tensor t;
    PyObject* result = PyTuple_GetItem(results, i);
    if (result == NULL || host.torch->tensor_of(result, &t) != 0) return 0;
    Py_IncRef(result);
    p->tensor[s->pattern + i] = result;
    p->at[s->pattern + i] = (uint64_t)t.data + t.byte_offset;
  }
  return 1;
}

static int call_torch(struct program* p, const struct step* s) {
  PyObject* args[64];
  uint32_t made = 0;
  for (; made < s->count; ++made) {
    args[made] = tensor_for(p, &p->object[s->first + made]);
    if (args[made] == NULL) break;
  }
  PyObject* answer = made == s->count ? PyObject_Vectorcall(s->function, args, made, NULL) : NULL;
  while (made > 0) Py_DecRef(args[--made]);
  int right = answer != NULL && keep_results(p, s, answer);
  if (answer != NULL) Py_DecRef(answer);
  return right;
}

static int run(struct program* p) {
  void* stream = NULL;
  if (!p->cpu && host.torch->stream_of(2 /* kDLCUDA */, p->device, &stream) != 0) return 0;
  for (uint32_t i = 0; i < p->steps; ++i) {
    const struct step* s = &p->step[i];
    for (uint32_t k = s->first; s->kind != CALL && k < s->first + s->count; ++k) {
      if (p->cell[k].slot != NOWHERE) p->values[k] = p->at[p->cell[k].slot] + p->cell[k].value;
      if (p->cell[k].map != NOWHERE && !encode(p, s, p->cell[k].map, p->values[k])) return 0;
    }
    const uint64_t* given = p->values + s->first;
    int right = 0;
    switch (s->kind) {
      case LAUNCH: running = p, launched = s; right = submit(s->name, p->cpu, s->function, s->sizes, stream, p->parameters + s->first); break;
      case FILL: right = fill(p, s, given[0], stream); break;
      case COPY: right = copy(p, s, given[0], given[1], stream); break;
      case ADDRESS: right = put(p, s, given[0], given[1], stream); break;
      case CALL: right = call_torch(p, s); break;
    }
    if (!right) return 0;
  }
  return 1;
}

static PyObject* results_of(const struct program* p) {
  const struct object* objects = p->object + p->objects - p->results;
  if (!p->many) return tensor_for(p, objects);
  PyObject* all = PyTuple_New(p->results);
  for (uint32_t i = 0; all != NULL && i < p->results; ++i) {
    PyObject* one = tensor_for(p, &objects[i]);
    if (one == NULL) {
      Py_DecRef(all);
      return NULL;
    }
    PyTuple_SetItem(all, i, one);
  }
  return all;
}

static PyObject* call(PyObject* self, PyObject* const* args, intptr_t count, PyObject* names) {
  struct program* p = PyCapsule_GetPointer(self, capsule);
  if (p == NULL) return NULL;
  if (p->running) return PyErr_Format(PyExc_RuntimeError, "a replay runs once at a time; make one for each thread");
  p->running = 1;
  PyObject* result = NULL;
  uint32_t made = 0;
  if (read_inputs(p, args, count, names)) {
    int right = 1;
    for (; right && made < p->outputs; made += (uint32_t)right) {
      struct tensor t;
      PyObject* output = PyObject_Vectorcall(p->empty, p->made[made], 3, NULL);
      right = output != NULL && host.torch->tensor_of(output, &t) == 0;
      if (right) {
        p->tensor[p->slots + made] = output;
        p->at[p->slots + made] = (uint64_t)t.data + t.byte_offset;
      } else if (output != NULL) {
        Py_DecRef(output);
      }
    }
    if (right && run(p)) result = results_of(p);
  }
  while (made > 0) Py_DecRef(p->tensor[p->slots + --made]);
  for (uint32_t i = p->slots + p->outputs; i < p->slots + p->outputs + p->computed; ++i) {
    if (p->tensor[i] != NULL) Py_DecRef(p->tensor[i]);
    p->tensor[i] = NULL;
  }
  p->running = 0;
  return result;
}

// Print how far from the start of each tensor that the kernel is given lies the address where no memory is.
static void print_fault(int signal, siginfo_t* fault, void* context) {
  if (launched == NULL) return;
  dprintf(STDERR_FILENO, "\nkernel %s reads or writes where no memory is, seen from the starts of its tensors:", launched->name);
  for (uint32_t i = launched->first; i < launched->first + launched->count; ++i) {
    if (running->cell[i].slot == NOWHERE) continue;
    long long offset = (int64_t)((uint64_t)fault->si_addr - running->values[i]);
    dprintf(STDERR_FILENO, " argument %u at byte %lld;", i - launched->first, offset);
  }
  dprintf(STDERR_FILENO, " mask its accesses at the borders\n");
}

// What follows is called by Python through ctypes.

// Have a fault of a kernel on the CPU printed before the process dies of it.
void watch_faults(void) {
  struct sigaction action = {.sa_sigaction = print_fault, .sa_flags = SA_SIGINFO | SA_RESETHAND};
  sigaction(SIGSEGV, &action, NULL);
}

static void forget(PyObject* self) {
  struct program* p = PyCapsule_GetPointer(self, capsule);
  Py_DecRef(p->keep);
  free(p->at);
  free(p->values);
  free(p->parameters);
  free(p->tensor);
  free(p->encoded);
  free(p);
}

PyObject* replay_new(const struct program* described) {
  struct program* p = malloc(sizeof *p);
  *p = *described;
  Py_IncRef(p->keep);
  p->method.function = (void*)call;
  p->method.flags = METH_FASTCALL | METH_KEYWORDS;
  p->at = calloc(p->slots + p->outputs + p->computed + 1, sizeof *p->at);
  p->tensor = calloc(p->slots + p->outputs + p->computed + 1, sizeof *p->tensor);
  p->values = calloc(p->cells + 1, sizeof *p->values);
  p->parameters = calloc(p->cells + 1, sizeof *p->parameters);
  p->encoded = aligned_alloc(_Alignof(struct encoded), (p->maps + 1) * sizeof *p->encoded);
  memset(p->encoded, 0, (p->maps + 1) * sizeof *p->encoded);
  for (uint32_t i = 0; i < p->cells; ++i) {
    int32_t map = p->cell[i].map;
    p->values[i] = p->cell[i].value;
    p->parameters[i] = map == NOWHERE ? (void*)&p->values[i] : p->encoded[map].words;
  }
  PyObject* self = PyCapsule_New(p, capsule, forget);
  PyObject* function = self == NULL ? NULL : PyCFunction_NewEx(&p->method, self, NULL);
  if (self != NULL) Py_DecRef(self);
  return function;
}

// The code and bits of a tensor's dtype, as DLPack counts; 0 if torch does not tell.
int dtype_of(PyObject* object, uint8_t* code, uint8_t* bits) {
  struct tensor t;
  if (host.torch->tensor_of(object, &t) != 0) { PyErr_Clear(); return 0; }
  *code = t.dtype.code;
  *bits = t.dtype.bits;
  return 1;
}
