ROUTE_ADD_RELU, ROUTE_SCALE_TANH = "add_relu", "scale_tanh"
